// Stores plans outside the program: plan files, digests and the JSON export.
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

// Returns the bytes of a plan file (docs/plan-format.md). The digest in the file is plan.digest.
// Throws InvalidPlan when plan.digest is not compute_digest(plan), or when ids do not fit the plan.
[[nodiscard]] std::vector<std::uint8_t> serialize(const Plan& plan);
// Reads a plan from its bytes. Throws InvalidPlan on a wrong magic, a wrong version, truncation,
// corruption, and sizes that do not fit. `where` names the source in messages.
[[nodiscard]] Plan deserialize(std::span<const std::uint8_t> bytes, std::string_view where);

// Returns the part of a plan that one rank needs, a fraction of its bytes: everything except the
// programs of other ranks. The digest is the whole plan's and is checked; of the other ranks the
// slice holds only the size and hash of their sections. Throws as serialize does, and
// InvalidArgument on a rank that the plan lacks. O(plan): to make the slices of every rank, make
// all of them at once.
[[nodiscard]] std::vector<std::uint8_t> serialize_slice(const Plan& plan, Rank rank);
[[nodiscard]] std::vector<std::vector<std::uint8_t>> serialize_slices(const Plan& plan);  // by rank
// Reads a slice: returns the plan with slice_of set. An Executor of that rank runs it as if it were
// whole. Operations that need all programs refuse it. Throws InvalidPlan as deserialize does.
// O(manifest + the rank's programs), and a few bytes for every other rank.
[[nodiscard]] Plan deserialize_slice(std::span<const std::uint8_t> bytes, std::string_view where);

// Returns the XXH3-64 of the canonical bytes: the content of the file before zstd, with each
// section represented by its size and hash. Throws InvalidPlan when ids do not fit the plan,
// because there are no such bytes then.
[[nodiscard]] std::uint64_t compute_digest(const Plan& plan);
// Returns the digest as 16 hex digits.
[[nodiscard]] std::string digest_text(std::uint64_t digest);

// Write and read plan files. Throw IoError (expected, found, where). Writing replaces the file
// atomically.
void save_plan(const Plan& plan, const std::string& path);
[[nodiscard]] Plan load_plan(const std::string& path);

// Returns the same plan with all units split into those of the round's head groups. A unit that
// spans several of them is read, computed, merged and sent part by part. A slice is converted as
// far as it goes. Throws InvalidPlan when slots or groups do not belong to the round. O(size).
[[nodiscard]] Plan with_even_head_groups(Plan plan);

// Selects the plan that a document describes when blocks have head groups of their own: its even
// form, for readers of documents without such groups, or the plan itself.
enum class ExportedHeadGroups : std::uint8_t { kEven, kOfBlocks };
// Writes the stable JSON contract (docs/plan-format.md), streamed. With `only`, `devices` holds
// that rank alone. Throws InvalidPlan when an even form is requested and a unit that it is made of
// does not exist.
void export_json(const Plan& plan, std::ostream& out, std::optional<Rank> only = std::nullopt,
                 ExportedHeadGroups head_groups = ExportedHeadGroups::kEven);
// Reads the plan in such a document, whichever program wrote it. Exporting the result gives the
// same document. A plan that was exported as it is, not in an even form made of it, is read with
// the same digest. Its programs may be wrong, which `verify` reports. `where` names the source in
// messages. Throws InvalidPlan naming the path in the document on text that is not JSON, a key that
// is missing or unknown, an id that names nothing, pairs that are not those of the bands, a digest
// of another plan, or an export of one rank. Memory: the plan.
[[nodiscard]] Plan import_json(std::string_view json, std::string_view where);

}  // namespace contextile
