// Finds accesses of shared memory by two warps of a block that no barrier orders, whatever turns
// the warps had. Warps and the asynchronous proxy have vector clocks (section 8 of the PTX manual
// has the causality order; Mattern, "Virtual time and global states of distributed systems", 1989).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace contextile::ptx {

class Races {
 public:
  using Clock = std::vector<std::uint32_t>;  // by warp, the proxy last

  // Forgets everything, for a block of as many warps and bytes.
  void reset(int num_warps, std::size_t bytes);

  // Accesses of bytes at an offset. Each throws Fault if there is a race.
  void read(int warp, std::size_t offset, std::size_t bytes);
  void write(int warp, std::size_t offset, std::size_t bytes);
  // A copy that the warp starts and the proxy makes. Returns the proxy's time of it.
  [[nodiscard]] std::uint32_t write_by_proxy(int warp, std::size_t offset, std::size_t bytes);

  // Accesses of the warp so far come before those of a warp that acquires the clock.
  void release(int warp, Clock& to);
  void acquire(int warp, const Clock& from);
  // The same for a copy of the proxy that has landed.
  void release_proxy(std::uint32_t time, Clock& to) const;

 private:
  struct Word {
    int writer = 0;
    std::uint32_t time = 0;  // of the last write, or 0
  };
  void require_written_before(int warp, std::size_t word, std::string_view what) const;
  void require_read_before(int warp, std::size_t word) const;
  template <typename Work>
  static void each_word(std::size_t offset, std::size_t bytes, const Work& work);

  std::size_t num_actors_ = 0;
  std::vector<Clock> clocks_;
  std::vector<Word> words_;           // 4 bytes each
  std::vector<std::uint32_t> reads_;  // by word and actor, the time of the last read
};

}  // namespace contextile::ptx
