// Plan files: any bytes are an InvalidPlan or a plan that every reader survives and that comes back
// from its own bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <span>
#include <streambuf>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/plan_stats.h"
#include "contextile/verify.h"
#include "plan/file/plan_file.h"
#include "plan/file/program_codec.h"

namespace {

using contextile::Plan;
using Bytes = std::vector<std::uint8_t>;

class NullBuffer : public std::streambuf {
  int overflow(int c) override { return traits_type::not_eof(c); }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

void use(const Plan& plan) {
  static_cast<void>(contextile::statistics(plan));
  static_cast<void>(contextile::verify(plan));
  NullBuffer nothing;
  std::ostream out(&nothing);
  contextile::export_json(plan, out);
}

void load(std::span<const std::uint8_t> bytes) {
  Plan plan;
  try {
    plan = contextile::deserialize(bytes, "fuzz");
  } catch (const contextile::InvalidPlan&) {  // the only way to refuse
    return;
  }
  use(plan);
  // What was accepted need not be written the way we write it; what we write must be stable.
  const Bytes ours = contextile::encode_plan(plan);
  plan.digest = contextile::digest_of_file(ours);
  const Bytes again =
      contextile::encode_plan(contextile::deserialize(contextile::serialize(plan), "own bytes"));
  if (again != ours) std::abort();
}

// Header fields that guard the rest are made right, so that the rest is reached.
void load_repaired(std::span<const std::uint8_t> input) {
  if (input.size() < contextile::PlanFileHeader::kBytes) return;
  Bytes bytes(input.begin(), input.end());
  constexpr std::size_t kFileBytesAt = 16;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[kFileBytesAt + i] = static_cast<std::uint8_t>(std::uint64_t{bytes.size()} >> (8 * i));
  }
  contextile::put_digest(bytes, contextile::digest_of_file(bytes));
  load(bytes);
}

// The input as the instructions of one program.
void decode_code(std::span<const std::uint8_t> input) {
  contextile::PlanRound round;
  round.head_groups = 3;
  for (std::int64_t block = 0; block < 5; ++block) round.blocks.add({10 * block, 10 * block + 7});
  const std::vector<contextile::BlockId> local = {contextile::BlockId{1}, contextile::BlockId{4}};
  for (const auto direction : {contextile::Direction::kForward, contextile::Direction::kBackward}) {
    const contextile::ProgramContext context{.round = &round,
                                             .local_blocks = local,
                                             .direction = direction,
                                             .num_devices = 4,
                                             .dtype = contextile::Dtype::kBf16,
                                             .partial_wire = contextile::Dtype::kF32};
    const Bytes empty(5);  // no slots of any kind
    const std::size_t kinds = direction == contextile::Direction::kForward ? 3 : 5;
    const contextile::ProgramByteViews views{std::span(empty).first(kinds),
                                             std::span(empty).first(1), input};
    try {
      const contextile::Program program =
          contextile::decode_program(views, context, {.file = "fuzz"});
      const contextile::ProgramBytes bytes = contextile::encode_program(program, context);
      const contextile::ProgramByteViews ours{bytes.staging, bytes.retain, bytes.code};
      if (contextile::decode_program(ours, context, {.file = "own bytes"}) != program) std::abort();
    } catch (const contextile::InvalidPlan&) {
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  load(bytes);
  load_repaired(bytes);
  decode_code(bytes);
  return 0;
}
