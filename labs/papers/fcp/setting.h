// The common setting of the tables of FCP (flexible context parallelism, MLSys 2026): machines,
// lengths, block size.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "labs/papers/setting.h"

namespace contextile {

// A machine of the paper's Table 1, which names neither. `flops_per_byte` is bf16 FLOPs of the
// tensor cores' peak per byte of network.
struct FcpGpu {
  std::string_view name;
  double flops_per_byte = 0;
};
inline constexpr FcpGpu kGpuX = {.name = "GPU-X", .flops_per_byte = 5920};
inline constexpr FcpGpu kGpuY = {.name = "GPU-Y", .flops_per_byte = 2500};

inline constexpr std::array<std::int32_t, 5> kFcpDevices = {16, 32, 64, 128, 256};
// The devices on which Figs. 9 and 12 and Table 2 were measured.
inline constexpr std::int32_t kFcpFigureDevices = 128;
inline constexpr std::int64_t kFcpTokensPerDevice = 32768;
// The paper's lengths, as far as it states them, and others to see what depends on them.
inline constexpr const char* kFcpLengths = "mixture400k";
[[nodiscard]] std::vector<std::string> fcp_lengths_compared(const TableOverrides& overrides);
// The longest documents have this many tokens.
inline constexpr std::int64_t kFcpLongest = 409600;
// For PaperResult::differences.
inline constexpr const char* kFcpLengthsAre =
    "mixture400k has half of its tokens in documents under 4096 (quantiles of documents: median "
    "690, 0.99 about 5000, 0.999 260K, at most 400K): both quantiles that the paper states. What "
    "lies between is ours. longalign is there for comparison, without a verdict.";

// The paper's lengths and heads on `devices` of the GPU in nodes of 8. The GPU is the dgx-h100
// preset with 50 GB/s of network per device. Its peak follows from the ratio, and its kernel loses
// as much on short pieces as the paper says.
[[nodiscard]] PaperSetting fcp_setting(const TableOverrides& overrides, std::int32_t devices,
                                       const FcpGpu& gpu = kGpuX);

// The tokens of a block in all verdicts on `fcp`: the paper's, or --block-size.
inline constexpr std::int64_t kFcpBlock = 4096;
[[nodiscard]] std::int64_t fcp_block(const TableOverrides& overrides);
// For PaperResult::setting.
[[nodiscard]] std::pair<std::string, std::string> fcp_block_setting(
    const TableOverrides& overrides);
// A zigzag ring cuts every document in 2N pieces. On more devices than these, its plans take
// minutes to simulate.
inline constexpr std::int32_t kFcpRingDevices = 64;
inline constexpr const char* kFcpRingNote =
    "The zigzag ring is planned on up to 64 devices: it cuts every document in 2N pieces, and on "
    "more devices plans of that many take minutes to simulate.";
// "fcp,magi", or "fcp,magi,zigzag" if the ring is planned.
[[nodiscard]] std::vector<StrategyChoice> with_ring(const std::string& strategies,
                                                    std::int32_t devices);
// The number of these strategies on all of these numbers of devices.
[[nodiscard]] std::int64_t num_with_ring(const std::string& strategies,
                                         std::span<const std::int32_t> all_devices);
// FCP in small blocks, shown next to the one of the verdicts.
inline constexpr const char* kFcpSmallBlocks = "fcp:block=1024";

}  // namespace contextile
