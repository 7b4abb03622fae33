// Plans outside the program: plan files, digests, the JSON export.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/plan.h"

namespace contextile {

// Bytes of a plan file (docs/plan-format.md). The digest in the file is plan.digest.
// Throws InvalidPlan when plan.digest is not compute_digest(plan), or ids do not fit the plan.
[[nodiscard]] std::vector<std::uint8_t> serialize(const Plan& plan);
// Throws InvalidPlan: wrong magic, version, truncation, corruption, sizes that do not fit. `where`
// names the source in messages.
[[nodiscard]] Plan deserialize(std::span<const std::uint8_t> bytes, std::string_view where);

// What one rank needs of a plan, a fraction of its bytes: everything but the programs of others.
// The digest is the whole plan's and is checked; what the slice says of other ranks is the size and
// hash of their sections. Throws as serialize does, and InvalidArgument on a rank the plan lacks.
// O(plan): for every rank, make all of them at once.
[[nodiscard]] std::vector<std::uint8_t> serialize_slice(const Plan& plan, Rank rank);
[[nodiscard]] std::vector<std::vector<std::uint8_t>> serialize_slices(const Plan& plan);  // by rank
// The plan with slice_of set: an Executor of that rank runs it, as if it were whole. What needs all
// programs refuses it. Throws InvalidPlan as deserialize does. O(manifest + the rank's programs),
// and a few bytes for every other rank.
[[nodiscard]] Plan deserialize_slice(std::span<const std::uint8_t> bytes, std::string_view where);

// XXH3-64 of the canonical bytes: what the file holds before zstd, each section by size and hash.
// Throws InvalidPlan when ids do not fit the plan, as there are no such bytes then.
[[nodiscard]] std::uint64_t compute_digest(const Plan& plan);
// "16 hex digits".
[[nodiscard]] std::string digest_text(std::uint64_t digest);

// Throws IoError (expected, found, where). Writing replaces the file atomically.
void save_plan(const Plan& plan, const std::string& path);
[[nodiscard]] Plan load_plan(const std::string& path);

// The same plan with all units as those of the rounds' head groups: what a unit of several is read,
// computed, merged and sent as, part by part; of a slice what it has. Throws InvalidPlan where
// slots or groups are none of the round's. O(size).
[[nodiscard]] Plan with_even_head_groups(Plan plan);

// The plan that a document is of where blocks have head groups of their own: its even form, as
// readers of documents without such groups need it, or itself.
enum class ExportedHeadGroups : std::uint8_t { kEven, kOfBlocks };
// The stable JSON contract (docs/plan-format.md), streamed. With `only`, `devices` holds that rank
// alone. Throws InvalidPlan where units do not exist that an even form is to be made of.
void export_json(const Plan& plan, std::ostream& out, std::optional<Rank> only = std::nullopt,
                 ExportedHeadGroups head_groups = ExportedHeadGroups::kEven);
// The plan in such a document, whoever wrote it: its own export is the same document, and a plan
// that was exported as it is comes back with the same digest. Its programs may be wrong, which
// `verify` says. `where` names the source in messages. Throws InvalidPlan naming the path in the
// document: what is no JSON, a key that is missing or unknown, an id that names nothing, pairs that
// are not those of the bands, a digest of another plan, an export of one rank. Memory: the plan.
[[nodiscard]] Plan import_json(std::string_view json, std::string_view where);

}  // namespace contextile
