#include "runtime/executor/call_check.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "runtime/executor/check_terms.h"

namespace contextile {
namespace {

bool agree(const CallTag& a, const CallTag& b) {
  if (a.direction == CallTag::kPrepare) return b.direction == CallTag::kPrepare;
  return a.plan == b.plan && a.mask == b.mask && a.direction == b.direction && a.terms == b.terms &&
         a.sinks == b.sinks && (a.number == b.number || a.number == 0 || b.number == 0);
}

Message message_of(std::int32_t peer, CallTag& tag) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(CallTag));
  return {Rank(peer), {{reinterpret_cast<std::byte*>(&tag), kBytes, 1, kBytes}}};
}

}  // namespace

CallTag call_tag(const SharedCall& call, const Plan& plan) {
  return {.plan = plan.digest,
          .mask = static_cast<std::int64_t>(call.mask),
          .number = call.number,
          .direction = static_cast<std::int64_t>(call.direction),
          .terms = digest_of(call.terms),
          .sinks = digest_of(call.sink_H)};
}

std::string text_of(const CallTag& tag) {
  if (tag.direction == CallTag::kPrepare) {
    return fmt::format("prepare of plan {}", digest_text(tag.plan));
  }
  const bool is_known = tag.direction >= 0 && std::cmp_less(tag.direction, kDirections.size());
  const std::string terms =
      tag.terms == 0 ? "" : fmt::format(", bias and dropout of digest {:016x}", tag.terms);
  const std::string sinks =
      tag.sinks == 0 ? "" : fmt::format(", sinks of digest {:016x}", tag.sinks);
  return fmt::format(
      "{} {} of plan {}, mask {}{}{}",
      is_known ? to_string(kDirections[static_cast<std::size_t>(tag.direction)]) : "none",
      tag.number, digest_text(tag.plan), tag.mask, terms, sinks);
}

CallCheck::CallCheck(Transport& transport, const CallTag& mine)
    : transport_(transport), mine_(mine) {
  const std::int32_t size = transport.size();
  const std::int32_t rank = transport.rank().value;
  if (size == 1) return;
  const Message send = message_of((rank + 1) % size, mine_);
  const Message receive = message_of((rank + size - 1) % size, theirs_);
  ticket_ = transport.launch({&send, 1}, {&receive, 1});
}

void CallCheck::wait() {
  if (transport_.size() == 1) return;
  transport_.wait(ticket_);
  if (const auto found = difference()) throw InvalidArgument(*found);
}

bool CallCheck::has_come() const {
  return std::ranges::none_of(transport_.open_transfers(), [this](const OpenTransfer& open) {
    return open.ticket == ticket_ && !open.is_send;
  });
}

std::optional<std::string> CallCheck::difference() const {
  const std::int32_t size = transport_.size();
  if (size == 1 || !has_come() || agree(mine_, theirs_)) return std::nullopt;
  const std::int32_t rank = transport_.rank().value;
  return fmt::format(
      "call: expected all ranks in the same one, found rank {} in {} and rank {} in {}", rank,
      text_of(mine_), (rank + size - 1) % size, text_of(theirs_));
}

}  // namespace contextile
