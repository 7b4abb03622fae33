#include "plan/file/compression.h"

#include <algorithm>
#include <array>
#include <new>

namespace contextile {
namespace {

// Higher levels store a few percent less and take longer (docs/results/runtime.md).
constexpr int kLevel = 1;

// A frame that decompressors skip: magic, the number of bytes that follow, these bytes.
constexpr std::array<std::uint8_t, 4> kSkippableMagic = {0x50, 0x2a, 0x4d, 0x18};
constexpr std::size_t kSkippableHeaderBytes = 8;

// Appends a skippable frame so that `stored` has at least `bytes` bytes.
void pad(std::vector<std::uint8_t>& stored, std::size_t bytes) {
  if (stored.size() >= bytes) return;
  const std::size_t skipped = std::max(bytes, stored.size() + kSkippableHeaderBytes) -
                              stored.size() - kSkippableHeaderBytes;
  stored.insert(stored.end(), kSkippableMagic.begin(), kSkippableMagic.end());
  for (int shift = 0; shift < 32; shift += 8) {
    stored.push_back(static_cast<std::uint8_t>(skipped >> shift));
  }
  stored.resize(stored.size() + skipped);
}

}  // namespace

Compressor::Compressor() : context_(ZSTD_createCCtx()) {
  if (!context_) throw std::bad_alloc();
}

std::vector<std::uint8_t> Compressor::compress(std::span<const std::uint8_t> content) {
  const std::size_t bound = ZSTD_compressBound(content.size());
  if (buffer_.size() < bound) buffer_.resize(bound);
  const std::size_t size = ZSTD_compressCCtx(context_.get(), buffer_.data(), buffer_.size(),
                                             content.data(), content.size(), kLevel);
  if (ZSTD_isError(size) != 0) {
    fail_plan("plan to write: cannot compress {} bytes: {}", content.size(),
              ZSTD_getErrorName(size));
  }
  std::vector<std::uint8_t> stored(buffer_.begin(),
                                   buffer_.begin() + static_cast<std::ptrdiff_t>(size));
  pad(stored, (content.size() + kMaxInflation - 1) / kMaxInflation);
  if (stored.size() >= content.size()) stored.assign(content.begin(), content.end());
  return stored;
}

Decompressor::Decompressor() : context_(ZSTD_createDCtx()) {
  if (!context_) throw std::bad_alloc();
}

std::vector<std::uint8_t> Decompressor::decompress(std::span<const std::uint8_t> stored,
                                                   std::uint64_t content_bytes,
                                                   const FilePlace& place) {
  if (content_bytes >= kEndOfContentBytes) {
    place.fail("expected a content of fewer than 2 GiB, found {} bytes", content_bytes);
  }
  if (content_bytes == stored.size()) return {stored.begin(), stored.end()};
  if (content_bytes / kMaxInflation > stored.size()) {
    place.fail("expected a content of at most {} times its {} bytes, found {}", kMaxInflation,
               stored.size(), content_bytes);
  }
  std::vector<std::uint8_t> content(content_bytes);
  const std::size_t size = ZSTD_decompressDCtx(context_.get(), content.data(), content.size(),
                                               stored.data(), stored.size());
  if (ZSTD_isError(size) != 0) {
    place.fail("expected zstd frames of {} bytes, found bytes that are none: {}", content_bytes,
               ZSTD_getErrorName(size));
  }
  if (size != content_bytes) {
    place.fail("expected zstd frames of {} bytes, found {}", content_bytes, size);
  }
  return content;
}

}  // namespace contextile
