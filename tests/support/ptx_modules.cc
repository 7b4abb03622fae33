#include "support/ptx_modules.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace contextile::ptx {
namespace {

Machine& machine() {
  static Machine machine = [] {
    Machine made;
    if (const char* timing = std::getenv("CONTEXTILE_PTX_TIMING")) {
      if (std::string_view(timing) == "at-once") made.timing = Timing::kAtOnce;
    }
    if (const char* seed = std::getenv("CONTEXTILE_PTX_SEED")) {
      made.seed = std::strtoull(seed, nullptr, 10);
    }
    return made;
  }();
  return machine;
}

// Instructions that ran, printed when the process ends, so that a test can tell that they did.
struct Totals {
  std::int64_t num_launches = 0;
  std::int64_t num_blocks = 0;
  ~Totals() {
    if (num_launches == 0) return;
    fmt::print(stderr, "ptx: {} launches, {} blocks, {} warp instructions\n", num_launches,
               num_blocks, machine().num_instructions);
  }
};

void report(const Fault& error) {
  fmt::print(stderr, "ptx: {}\n", error.what());
  std::fflush(stderr);
}

}  // namespace

bool is_ptx(std::string_view text) {
  return text.find(".version") != std::string_view::npos &&
         text.find(".target") != std::string_view::npos;
}

const Module* loaded_module(std::string_view text) {
  static std::map<std::string, Module, std::less<>> modules;
  if (const auto found = modules.find(text); found != modules.end()) return &found->second;
  try {
    return &modules.emplace(text, parse_module(text)).first->second;
  } catch (const Fault& error) {
    report(error);
    return nullptr;
  }
}

bool run_or_report(const Kernel& kernel, const Launch& launch,
                   bool (*is_memory)(std::uint64_t address, std::uint64_t bytes)) {
  static Totals totals;
  ++totals.num_launches;
  totals.num_blocks += std::int64_t{launch.blocks_x} * launch.blocks_y;
  machine().is_memory = is_memory;
  try {
    run(machine(), kernel, launch);
  } catch (const Fault& error) {
    report(error);
    return false;
  }
  return true;
}

}  // namespace contextile::ptx
