// Completion of command lines. The shells' scripts hold no names: at every key press they ask the
// program, `contextile __complete WORD…`, so a script never falls behind the program it calls.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"

namespace contextile {

// The first argument with which scripts ask for candidates; not a command of its own.
inline constexpr std::string_view kCompleteArgument = "__complete";

struct Candidate {
  std::string word;  // a whole word in place of the last one; ends in ':' or '=' when more follows
  std::string text;  // what it means, for shells that show it
};
struct CompletionValues {
  std::vector<Candidate> words;
  bool files = false;  // paths fit, too
};
// The words that the last of `words`, those behind the program's name, could become; the last one
// may be empty. Words that make no sense have no candidates: nothing is an error here.
[[nodiscard]] CompletionValues candidates_for(const CLI::App& program,
                                              std::span<const std::string> words);

// The answer to a script: "files" or "words", then for each candidate its word, a tab, its text.
[[nodiscard]] std::string answer_text(const CompletionValues& candidates);

// The script that `contextile completion SHELL` prints.
[[nodiscard]] const std::vector<std::string>& completion_shells();
// Throws InvalidArgument on a shell that is none of them.
[[nodiscard]] std::string_view completion_script(std::string_view shell);

}  // namespace contextile
