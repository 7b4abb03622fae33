// The common setting of the tables of FCP (flexible context parallelism, MLSys 2026): machines,
// lengths, methods, block size.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "labs/papers/setting.h"

namespace contextile {

// A machine of the paper's Table 1, which names neither. The preset is our identification: its
// tensor cores' bf16 peak over its network gives the paper's ratio.
struct FcpGpu {
  std::string_view name;
  std::string_view preset;
  double flops_per_byte = 0;      // of the tensor cores' peak, per byte of network
  std::int32_t transfer_sms = 0;  // multiprocessors for communication (section 6.1)
};
inline constexpr FcpGpu kGpuX = {
    .name = "GPU-X", .preset = "h20", .flops_per_byte = 5920, .transfer_sms = 6};
inline constexpr FcpGpu kGpuY = {
    .name = "GPU-Y", .preset = "gb200-nvl72", .flops_per_byte = 2500, .transfer_sms = 8};

inline constexpr std::array<std::int32_t, 5> kFcpDevices = {16, 32, 64, 128, 256};
// The devices on which Figs. 12 and 13 and Table 2 were measured.
inline constexpr std::int32_t kFcpFigureDevices = 128;
inline constexpr std::int64_t kFcpTokensPerDevice = 32768;
// The paper's lengths: about log-normal, half of the tokens under 4K, at most 512K. The second
// distribution has a heavier tail and shows what the first one's decides.
inline constexpr const char* kFcpLengths = "lognormal512k";
inline constexpr const char* kFcpHeavierLengths = "mixture512k";
[[nodiscard]] std::vector<std::string> fcp_lengths_compared(const TableOverrides& overrides);
inline constexpr std::int64_t kFcpLongest = 524288;
inline constexpr std::int64_t kFcpBatches = 20;
// For PaperResult::differences.
inline constexpr const char* kFcpLengthsAre =
    "lognormal512k is the one log-normal (sigma 1.6) with half of its tokens in documents under "
    "4096; mixture512k has that half, too, but documents of 512K a hundred times as often. "
    "Verdicts "
    "are on the first; fcp-fig2 prints both.";
inline constexpr const char* kFcpMachinesAre =
    "The paper names no GPU. Its ratios are those of an H20 with 25 GB/s of network (148 TFLOP/s) "
    "and of a B200 in an NVL72 domain (2250 TFLOP/s, 900 GB/s). That is our identification.";
inline constexpr const char* kFcpSmsAre =
    "Every method's attention leaves 6 of the 78 multiprocessors of GPU-X, and 8 of the 148 of "
    "GPU-Y, to transfers at all times. The paper says so of FCP only.";

// The paper's lengths and heads on `devices` of the GPU: H20 in nodes of 8; B200 in one NVLink
// domain up to 72 devices, else in domains of 64.
[[nodiscard]] PaperSetting fcp_setting(const TableOverrides& overrides, std::int32_t devices,
                                       const FcpGpu& gpu = kGpuX);

// The tokens of a block in all verdicts on `fcp`: the paper's, or --block-size.
inline constexpr std::int64_t kFcpBlock = 4096;
[[nodiscard]] std::int64_t fcp_block(const TableOverrides& overrides);
// For PaperResult::setting.
[[nodiscard]] std::pair<std::string, std::string> fcp_block_setting(
    const TableOverrides& overrides);
// FCP in small blocks, shown next to the one of the verdicts.
inline constexpr const char* kFcpSmallBlocks = "fcp:block=1024";
// FCP first, then the paper's baselines: rings in order and in zigzag order, WLB-LLM, ByteScale,
// and MagiAttention, which the paper does not have on GPU-Y.
inline constexpr const char* kFcpMethods = "fcp,magi,bytescale,wlb,zigzag,ring";
inline constexpr const char* kFcpMethodsOnY = "fcp,bytescale,wlb,zigzag,ring";

}  // namespace contextile
