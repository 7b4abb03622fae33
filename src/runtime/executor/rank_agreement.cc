#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/advanced/executor.h"
#include "contextile/base.h"
#include "contextile/plan_file.h"
#include "runtime/executor/call_check.h"
#include "runtime/executor/check_terms.h"
#include "transport/agreement.h"

namespace contextile {
namespace {

// The data that all ranks must agree on. Its layout stays, so that versions can detect a mismatch.
struct PlanIdentity {
  std::uint64_t digest = 0;
  std::int32_t num_devices = 0;
  std::int32_t slice_of = -1;
  std::array<char, 16> version{};

  [[nodiscard]] std::string_view version_text() const {
    return {version.data(), ::strnlen(version.data(), version.size())};
  }
};

PlanIdentity identity_of(const Plan& plan) {
  PlanIdentity identity{plan.digest, plan.num_devices(), plan.slice_of.value, {}};
  version().copy(identity.version.data(), identity.version.size());
  return identity;
}

// Throws InvalidPlan unless all ranks' plans go together.
void check_identities(std::span<const PlanIdentity> plans) {
  for (std::size_t r = 1; r < plans.size(); ++r) {
    if (plans[r].version == plans[0].version) continue;
    fail_plan(
        "prepare: expected one version of contextile on all ranks, found {} on rank 0 and {} "
        "on rank {}",
        printable(plans[0].version_text()), printable(plans[r].version_text()), r);
  }
  for (std::size_t r = 1; r < plans.size(); ++r) {
    if (plans[r].digest == plans[0].digest) continue;
    fail_plan(
        "prepare: expected one plan on all ranks, found digest {} on rank 0 and {} on rank {}",
        digest_text(plans[0].digest), digest_text(plans[r].digest), r);
  }
  for (std::size_t r = 0; r < plans.size(); ++r) {
    if (std::cmp_equal(plans[r].num_devices, plans.size())) continue;
    fail_plan("prepare: expected a plan for {} ranks, found one for {} on rank {}", plans.size(),
              plans[r].num_devices, r);
  }
  for (std::size_t r = 0; r < plans.size(); ++r) {
    if (plans[r].slice_of < 0 || std::cmp_equal(plans[r].slice_of, r)) continue;
    fail_plan("prepare: expected the slice of rank {} on rank {}, found that of rank {}", r, r,
              plans[r].slice_of);
  }
}

// Throws InvalidArgument if a neighbour is in a call.
void check_all_prepare(Transport& transport, std::uint64_t plan) {
  CallCheck check(transport, {.plan = plan, .direction = CallTag::kPrepare});
  try {
    check.wait();
  } catch (const InvalidArgument& error) {
    transport.abort(error.what());
    throw;
  }
}

// Every rank throws the same when plans differ. Returns true if any rank has only a slice.
bool check_same_plan(Transport& transport, const PlanIdentity& mine) {
  const std::vector<std::vector<std::byte>> all =
      all_gather(transport, std::as_bytes(std::span(&mine, 1)));
  std::vector<PlanIdentity> plans(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::memcpy(&plans[r], all[r].data(), sizeof(PlanIdentity));
  }
  try {
    check_identities(plans);
  } catch (const InvalidPlan&) {
    let_all_look(transport);
    throw;
  }
  return std::ranges::any_of(plans, [](const PlanIdentity& plan) { return plan.slice_of >= 0; });
}

}  // namespace

bool agree_on_plan(Transport& transport, const Plan& plan) {
  check_all_prepare(transport, plan.digest);
  return check_same_plan(transport, identity_of(plan));
}

CallAgreement::CallAgreement(Transport& transport, const Plan& plan, const SharedCall& call) {
  check_terms(fmt::format("rank {}, {}", transport.rank().value, to_string(call.direction)), plan,
              call.terms);
  check_ = std::make_unique<CallCheck>(transport, call_tag(call, plan));
}
CallAgreement::~CallAgreement() = default;
CallAgreement::CallAgreement(CallAgreement&&) noexcept = default;
CallAgreement& CallAgreement::operator=(CallAgreement&&) noexcept = default;

void CallAgreement::wait() { check_->wait(); }
std::optional<std::string> CallAgreement::difference() const { return check_->difference(); }

}  // namespace contextile
