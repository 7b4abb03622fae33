// Options of a benchmark: words, each with a value behind it.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

namespace contextile::bench {

// Hands each value to the reader of its word. Ends the program with 2 on a word that has no reader,
// and on one without a value.
inline void read_options(int argc, char** argv,
                         const std::map<std::string, std::function<void(const char*)>>& readers) {
  for (int i = 1; i < argc; i += 2) {
    const auto reader = readers.find(argv[i]);
    if (reader == readers.end() || i + 1 == argc) {
      std::string words;
      for (const auto& [word, read] : readers) words += ' ' + word;
      fmt::print(stderr, "expected values of{}, found {}\n", words, argv[i]);
      std::exit(2);
    }
    reader->second(argv[i + 1]);
  }
}

}  // namespace contextile::bench
