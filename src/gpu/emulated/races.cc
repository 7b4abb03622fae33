#include "gpu/emulated/races.h"

#include <algorithm>

#include "gpu/emulated/state.h"

namespace contextile::ptx {
namespace {

std::size_t at(int warp) { return static_cast<std::size_t>(warp); }

}  // namespace

template <typename Work>
void Races::each_word(std::size_t offset, std::size_t bytes, const Work& work) {
  const std::size_t end = (offset + bytes + 3) / 4;
  for (std::size_t word = offset / 4; word < end; ++word) work(word);
}

void Races::reset(int num_warps, std::size_t bytes) {
  num_actors_ = at(num_warps) + 1;
  clocks_.assign(num_actors_, Clock(num_actors_, 0));
  for (std::size_t actor = 0; actor < num_actors_; ++actor) clocks_[actor][actor] = 1;
  words_.assign(bytes / 4 + 1, Word{});
  reads_.assign(words_.size() * num_actors_, 0);
}

void Races::require_written_before(int warp, std::size_t word, std::string_view what) const {
  const Word& last = words_[word];
  if (last.time > clocks_[at(warp)][at(last.writer)]) {
    fault("expected a barrier before warp {} {} shared memory at {}, which {} wrote", warp, what,
          kSharedBegin + 4 * word,
          at(last.writer) + 1 == num_actors_ ? "TMA" : fmt::format("warp {}", last.writer));
  }
}

void Races::require_read_before(int warp, std::size_t word) const {
  for (std::size_t reader = 0; reader < num_actors_; ++reader) {
    if (reads_[word * num_actors_ + reader] > clocks_[at(warp)][reader]) {
      fault("expected a barrier before warp {} writes shared memory at {}, which warp {} read",
            warp, kSharedBegin + 4 * word, reader);
    }
  }
}

void Races::read(int warp, std::size_t offset, std::size_t bytes) {
  each_word(offset, bytes, [&](std::size_t word) {
    require_written_before(warp, word, "reads");
    reads_[word * num_actors_ + at(warp)] = clocks_[at(warp)][at(warp)];
  });
}

void Races::write(int warp, std::size_t offset, std::size_t bytes) {
  each_word(offset, bytes, [&](std::size_t word) {
    require_written_before(warp, word, "writes");
    require_read_before(warp, word);
    words_[word] = {warp, clocks_[at(warp)][at(warp)]};
  });
}

std::uint32_t Races::write_by_proxy(int warp, std::size_t offset, std::size_t bytes) {
  Clock& proxy = clocks_.back();
  const std::uint32_t time = ++proxy.back();
  each_word(offset, bytes, [&](std::size_t word) {
    require_written_before(warp, word, "copies to");
    require_read_before(warp, word);
    words_[word] = {static_cast<int>(num_actors_) - 1, time};
  });
  return time;
}

void Races::release(int warp, Clock& to) {
  Clock& own = clocks_[at(warp)];
  to.resize(num_actors_, 0);
  for (std::size_t actor = 0; actor < num_actors_; ++actor) {
    to[actor] = std::max(to[actor], own[actor]);
  }
  ++own[at(warp)];
}

void Races::acquire(int warp, const Clock& from) {
  Clock& own = clocks_[at(warp)];
  for (std::size_t actor = 0; actor < from.size(); ++actor) {
    own[actor] = std::max(own[actor], from[actor]);
  }
}

void Races::release_proxy(std::uint32_t time, Clock& to) const {
  to.resize(num_actors_, 0);
  to.back() = std::max(to.back(), time);
}

}  // namespace contextile::ptx
