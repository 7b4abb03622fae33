#include "contextile/plan_file.h"
#include "plan/file/plan_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

#include "base/check.h"

namespace contextile {

std::uint64_t digest_of_file(std::span<const std::uint8_t> file) {
  constexpr std::array<std::uint8_t, 8> kZero{};
  constexpr std::size_t kDigestEnd = PlanFileHeader::kDigestOffset + kZero.size();
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, file.data(), PlanFileHeader::kDigestOffset);
  XXH3_64bits_update(&state, kZero.data(), kZero.size());
  XXH3_64bits_update(&state, file.data() + kDigestEnd, file.size() - kDigestEnd);
  return XXH3_64bits_digest(&state);
}

std::uint64_t compute_digest(const Plan& plan) { return digest_of_file(encode_plan(plan)); }

std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace contextile
