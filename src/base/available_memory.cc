#include "base/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace contextile {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

// MemAvailable of /proc/meminfo: free memory and what the system can reclaim without swapping.
std::int64_t of_system() {
  std::ifstream lines("/proc/meminfo");
  std::string name;
  std::int64_t kib = 0;
  for (std::string unit; lines >> name >> kib; std::getline(lines, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return kUnknown;
}

// The limit of the address space less what is mapped.
std::int64_t of_process() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::int64_t mapped = pages * sysconf(_SC_PAGESIZE);
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(limit.rlim_cur) - mapped);
}

}  // namespace

std::int64_t available_memory_bytes() { return std::min(of_system(), of_process()); }

}  // namespace contextile
