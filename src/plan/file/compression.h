// Sections of a plan file as zstd frames.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plan/file/file_place.h"

namespace contextile {

// Most bytes of a section's content per stored byte. This bounds the memory that a small file can
// make a reader allocate; the writer pads sections that compress better.
inline constexpr std::uint64_t kMaxInflation = 32;
// FlatBuffers are smaller than this.
inline constexpr std::uint64_t kEndOfContentBytes = (std::uint64_t{1} << 31) - 1;

// Compresses one section after another; one thread uses it at a time.
class Compressor {
 public:
  Compressor();

  // Returns the bytes to store for `content`: a zstd frame, or `content` itself if that is no
  // longer. The same content gives the same bytes with one version of zstd. O(content).
  [[nodiscard]] std::vector<std::uint8_t> compress(std::span<const std::uint8_t> content);

 private:
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, Free> context_;
  std::vector<std::uint8_t> buffer_;
};

// Reads one section after another; one thread uses it at a time.
class Decompressor {
 public:
  Decompressor();

  // The content of a section, `content_bytes` long, aligned for FlatBuffers. Untrusted bytes:
  // throws InvalidPlan if they are no zstd frame of that content. It throws before allocating if
  // content_bytes is more than kMaxInflation times the stored bytes.
  [[nodiscard]] std::vector<std::uint8_t> decompress(std::span<const std::uint8_t> stored,
                                                     std::uint64_t content_bytes,
                                                     const FilePlace& place);

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
};

}  // namespace contextile
