#include "kernel_torch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "kernel_peaks.h"
#include "kernel_tile.h"

namespace contextile {
namespace {

constexpr std::int32_t kHeads = 8;
constexpr std::int32_t kKvHeads = 2;
constexpr std::int32_t kDim = 128;

// The text quoted as one word of a shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

// The output of a command; empty if it fails.
std::string output_of(const std::string& command) {
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  if (pipe == nullptr) return "";
  std::string text;
  char some[4096];
  while (const std::size_t count = std::fread(some, 1, sizeof(some), pipe.get())) {
    text.append(some, count);
  }
  return pclose(pipe.release()) == 0 ? text : "";
}

double median_seconds(int repeats, const std::function<void()>& call) {
  call();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = thread_cpu_s();
    call();
    seconds.push_back(thread_cpu_s() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

void print_beside_torch(const std::string& python, int repeats) {
  const std::string interpreter = quoted(python);
  if (output_of(interpreter + " -c 'import torch; print(1)' 2>/dev/null").empty()) {
    fmt::print("\ntorch: skipped, {} cannot import it (--python PATH names another)\n", python);
    return;
  }
  std::istringstream lines(
      output_of(fmt::format("{} {} {} {} {} {} 1024 4096", interpreter,
                            quoted(CONTEXTILE_TORCH_ATTENTION), kHeads, kKvHeads, kDim, repeats)));
  std::string word;
  std::string version;
  if (!(lines >> word >> version)) {
    fmt::print("\ntorch: failed\n");
    return;
  }
  fmt::print(
      "\nbeside torch {} on one thread, causal, {}/{} heads of {}: GFLOP/s\n"
      "{:>6} {:>7} {:9} {:>8} {:>8} {:>7}\n",
      version, kHeads, kKvHeads, kDim, "dtype", "tokens", "direction", "torch", "here", "ratio");
  std::int64_t tokens = 0;
  double forward_s = 0;
  double backward_s = 0;
  while (lines >> word >> tokens >> forward_s >> backward_s) {
    const Dtype dtype = word == "bf16" ? Dtype::kBf16 : Dtype::kF32;
    BenchTile tile(preferred_kernel(dtype), bench_shape(kHeads, kKvHeads, kDim, dtype), "causal",
                   tokens);
    const auto print = [&](const char* direction, double flops, double torch_s, double here_s) {
      fmt::print("{:>6} {:>7} {:9} {:>8.1f} {:>8.1f} {:>6.2f}x\n", word, tokens, direction,
                 flops / torch_s / 1e9, flops / here_s / 1e9, torch_s / here_s);
      std::fflush(stdout);
    };
    print("forward", tile.forward_flops(), forward_s,
          median_seconds(repeats, [&] { tile.forward(); }));
    print("backward", tile.backward_flops(), backward_s,
          median_seconds(repeats, [&] { tile.backward(); }));
  }
}

}  // namespace contextile
