// hMETIS hypergraph, partition and fix files.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/replaced_file.h"
#include "contextile/extend/hypergraph.h"
#include "partition/hypergraph/lines.h"

namespace contextile {
namespace {

// Vertices that no net mentions take no room in a file without vertex weights. This limit keeps a
// file of a few bytes from allocating gigabytes for them.
constexpr std::int64_t kMaxUnmentionedVertices = 1 << 20;
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max() - 1;

struct HgrHeader {
  std::int64_t nets = 0;
  std::int64_t vertices = 0;
  bool net_weights = false;
  bool vertex_weights = false;
  std::int64_t dimensions = 1;
};

HgrHeader parse_header(NumberLines& lines, std::size_t text_bytes) {
  if (!lines.next_line()) lines.fail("a header 'nets vertices [fmt [dimensions]]'", "end of file");
  // Every net, and every mentioned vertex, takes a digit and a separator.
  const auto entries = static_cast<std::int64_t>(text_bytes / 2);
  HgrHeader header;
  header.nets =
      lines.next_number("a number of nets the file has room for,", 0, std::min(kMaxCount, entries));
  header.vertices = lines.next_number("a number of vertices the file has room for,", 0,
                                      std::min(kMaxCount, entries + kMaxUnmentionedVertices));
  if (!lines.line_is_done()) {
    const std::int64_t format = lines.next_number("fmt 0, 1, 10 or 11:", 0, 11);
    if (format > 1 && format < 10) lines.fail("fmt 0, 1, 10 or 11", fmt::format("{}", format));
    header.net_weights = format % 10 == 1;
    header.vertex_weights = format >= 10;
  }
  if (!lines.line_is_done()) {
    header.dimensions = lines.next_number("weights a vertex,", 1, header.vertex_weights ? 2 : 1);
  }
  lines.expect_line_done("a header 'nets vertices [fmt [dimensions]]'");
  return header;
}

void parse_nets(NumberLines& lines, const HgrHeader& header, Hypergraph& hypergraph) {
  hypergraph.net_offsets.reserve(static_cast<std::size_t>(header.nets) + 1);
  hypergraph.net_weights.reserve(static_cast<std::size_t>(header.nets));
  IdVector<VertexId, std::int64_t> last_net(hypergraph.vertices(), -1);
  std::vector<VertexId> pins;
  for (std::int64_t e = 0; e < header.nets; ++e) {
    if (!lines.next_line()) {
      lines.fail(fmt::format("{} nets", header.nets), fmt::format("end of file after {}", e));
    }
    const std::int64_t weight =
        header.net_weights ? lines.next_number("a net's weight", 0, kMaxTotalWeight) : 1;
    pins.clear();
    do {
      const VertexId v{
          static_cast<std::int32_t>(lines.next_number("a vertex", 1, header.vertices) - 1)};
      if (std::exchange(last_net[v], e) == e) {
        lines.fail("every vertex at most once in a net", fmt::format("{} twice", v.value + 1));
      }
      pins.push_back(v);
    } while (!lines.line_is_done());
    hypergraph.add_net(pins, weight);
  }
}

void parse_vertex_weights(NumberLines& lines, const HgrHeader& header, Hypergraph& hypergraph) {
  if (!header.vertex_weights) return;
  for (const VertexId v : hypergraph.vertices()) {
    if (!lines.next_line()) {
      lines.fail(fmt::format("weights of {} vertices", header.vertices),
                 fmt::format("end of file after {}", v.value));
    }
    HyperWeight& weight = hypergraph.vertex_weights[v];
    weight.compute = lines.next_number("a vertex's weight", 0, kMaxTotalWeight);
    if (header.dimensions == 2) {
      weight.data = lines.next_number("a vertex's second weight", 0, kMaxTotalWeight);
    }
    lines.expect_line_done(header.dimensions == 2 ? "two weights of a vertex"
                                                  : "one weight of a vertex");
  }
}

// Parses one number per line for each vertex.
IdVector<VertexId, PartId> parse_part_lines(std::string_view text, std::int32_t num_vertices,
                                            std::int32_t num_parts, std::int32_t least,
                                            std::string_view where) {
  CONTEXTILE_CHECK(num_vertices >= 0, "num_vertices: expected at least 0, found {}", num_vertices);
  CONTEXTILE_CHECK(1 <= num_parts && num_parts <= kMaxParts,
                   "num_parts: expected 1 to {}, found {}", kMaxParts, num_parts);
  NumberLines lines(text, where, '\0');
  IdVector<VertexId, PartId> parts;
  while (lines.next_line()) {
    if (std::cmp_equal(parts.size(), num_vertices)) {
      lines.fail(fmt::format("one line for each of {} vertices", num_vertices), "one more");
    }
    parts.push_back(
        PartId{static_cast<std::int32_t>(lines.next_number("a part", least, num_parts - 1))});
    lines.expect_line_done("one part");
  }
  if (std::cmp_less(parts.size(), num_vertices)) {
    lines.fail(fmt::format("one line for each of {} vertices", num_vertices),
               fmt::format("end of file after {}", parts.size()));
  }
  return parts;
}

void write_text(const std::string& text, const std::string& path) {
  ReplacedFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace

Hypergraph parse_hgr(std::string_view text, std::string_view where) {
  NumberLines lines(text, where, '%');
  const HgrHeader header = parse_header(lines, text.size());
  Hypergraph hypergraph;
  hypergraph.vertex_weights.assign(IdRange<VertexId>(static_cast<std::int32_t>(header.vertices)),
                                   {.compute = 1, .data = 0});
  parse_nets(lines, header, hypergraph);
  parse_vertex_weights(lines, header, hypergraph);
  if (lines.next_line()) lines.fail("the end of the file", "one more line");
  check_hypergraph(hypergraph, where);  // sums of weights
  return hypergraph;
}

Hypergraph read_hgr(const std::string& path) {
  const FileBytes file(path, expect_text("a hypergraph in hMETIS format"));
  return parse_hgr(file.text(), file.name());
}

std::string format_hgr(const Hypergraph& hypergraph) {
  check_hypergraph(hypergraph);
  const auto& weights = hypergraph.vertex_weights;
  const bool net_weights = std::any_of(hypergraph.net_weights.begin(), hypergraph.net_weights.end(),
                                       [](std::int64_t weight) { return weight != 1; });
  const bool data = std::any_of(weights.begin(), weights.end(),
                                [](const HyperWeight& weight) { return weight.data != 0; });
  // parse_hgr rejects a file that names far more vertices than it has numbers, unless it lists
  // weights.
  const bool too_many_unmentioned =
      std::ssize(weights) - std::ssize(hypergraph.pins) > kMaxUnmentionedVertices;
  const bool vertex_weights =
      data || too_many_unmentioned ||
      std::any_of(weights.begin(), weights.end(),
                  [](const HyperWeight& weight) { return weight.compute != 1; });
  std::string text = fmt::format("{} {}", hypergraph.num_nets(), hypergraph.num_vertices());
  if (net_weights || vertex_weights) {
    text += fmt::format(" {}{}", vertex_weights ? "1" : "", net_weights ? "1" : "0");
  }
  text += data ? " 2\n" : "\n";
  auto out = std::back_inserter(text);
  for (const NetId e : hypergraph.nets()) {
    if (net_weights) {
      fmt::format_to(out, "{} ", hypergraph.net_weights[e]);
    }
    for (const VertexId v : hypergraph.pins_of(e)) fmt::format_to(out, "{} ", v.value + 1);
    text.back() = '\n';
  }
  if (!vertex_weights) return text;
  for (const HyperWeight& weight : weights) {
    fmt::format_to(out, "{}", weight.compute);
    if (data) fmt::format_to(out, " {}", weight.data);
    text += '\n';
  }
  return text;
}

void write_hgr(const Hypergraph& hypergraph, const std::string& path) {
  write_text(format_hgr(hypergraph), path);
}

HypergraphPartition parse_partition(std::string_view text, std::int32_t num_vertices,
                                    std::int32_t num_parts, std::string_view where) {
  return {parse_part_lines(text, num_vertices, num_parts, 0, where)};
}

HypergraphPartition read_partition(const std::string& path, std::int32_t num_vertices,
                                   std::int32_t num_parts) {
  const FileBytes file(path, expect_text("a partition, a part per line"));
  return parse_partition(file.text(), num_vertices, num_parts, file.name());
}

std::string format_partition(const HypergraphPartition& partition) {
  std::string text;
  for (const PartId part : partition.part) text += fmt::format("{}\n", part.value);
  return text;
}

void write_partition(const HypergraphPartition& partition, const std::string& path) {
  write_text(format_partition(partition), path);
}

IdVector<VertexId, PartId> parse_fixed(std::string_view text, std::int32_t num_vertices,
                                       std::int32_t num_parts, std::string_view where) {
  return parse_part_lines(text, num_vertices, num_parts, -1, where);
}

IdVector<VertexId, PartId> read_fixed(const std::string& path, std::int32_t num_vertices,
                                      std::int32_t num_parts) {
  const FileBytes file(path, expect_text("fixed vertices, a part or -1 per line"));
  return parse_fixed(file.text(), num_vertices, num_parts, file.name());
}

}  // namespace contextile
