#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "contextile/extend/hypergraph.h"
#include "partition/hypergraph/graph_support.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string hgr_message(std::string_view text) {
  return message_of([&] { static_cast<void>(parse_hgr(text, "f.hgr")); });
}

TEST(Hgr, ReadsTheFourFormatsOfHmetis) {
  const Hypergraph plain = parse_hgr("% two nets\n2 3\n1 2\n\n 3 1 2 \r\n", "f");
  EXPECT_THAT(plain.net_offsets, ElementsAre(0, 2, 5));
  EXPECT_EQ(plain.pins, pins({0, 1, 2, 0, 1}));
  EXPECT_THAT(plain.net_weights, ElementsAre(1, 1));
  EXPECT_THAT(plain.vertex_weights,
              ElementsAre(HyperWeight{1, 0}, HyperWeight{1, 0}, HyperWeight{1, 0}));
  EXPECT_EQ(plain, parse_hgr("2 3 0\n1 2\n3 1 2", "f"));

  const Hypergraph nets = parse_hgr("2 3 1\n7 1 2\n8 3\n", "f");
  EXPECT_THAT(nets.net_weights, ElementsAre(7, 8));
  EXPECT_EQ(nets.pins, pins({0, 1, 2}));

  const Hypergraph vertices = parse_hgr("1 2 10\n1 2\n5\n% between\n0\n", "f");
  EXPECT_THAT(vertices.vertex_weights, ElementsAre(HyperWeight{5, 0}, HyperWeight{0, 0}));

  const Hypergraph both = parse_hgr("1 2 11\n9 1 2\n5\n6", "f");
  EXPECT_THAT(both.net_weights, ElementsAre(9));
  EXPECT_THAT(both.vertex_weights, ElementsAre(HyperWeight{5, 0}, HyperWeight{6, 0}));
}

TEST(Hgr, ReadsTwoWeightsAVertex) {
  const Hypergraph two = parse_hgr("1 2 10 2\n1 2\n5 6\n0 8\n", "f");
  EXPECT_THAT(two.vertex_weights, ElementsAre(HyperWeight{5, 6}, HyperWeight{0, 8}));
}

TEST(Hgr, SurvivesBeingWrittenAndRead) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    RandomHypergraph shape;
    shape.vertices = 1 + static_cast<std::int32_t>(random() % 30);
    shape.nets = static_cast<std::int32_t>(random() % 40);
    Hypergraph hypergraph = random_hypergraph(shape, random);
    if (seed % 2 == 0) hypergraph.net_weights.assign(hypergraph.nets(), 1);
    if (seed % 3 == 0) {
      for (HyperWeight& weight : hypergraph.vertex_weights) weight.data = 0;
    }
    if (seed % 5 == 0) {
      for (HyperWeight& weight : hypergraph.vertex_weights) weight = {1, 0};
    }
    EXPECT_EQ(parse_hgr(format_hgr(hypergraph), "f"), hypergraph);
  }
}

TEST(Hgr, SurvivesManyVerticesNoNetMentions) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights.assign(IdRange<VertexId>((1 << 20) + 5), {1, 0});
  hypergraph.add_net(pins({0, 1}), 1);
  EXPECT_EQ(parse_hgr(format_hgr(hypergraph), "f"), hypergraph);
}

TEST(Hgr, UsesTheShortestFormat) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights = {{1, 0}, {1, 0}};
  hypergraph.add_net(pins({1, 0}), 1);
  EXPECT_EQ(format_hgr(hypergraph), "1 2\n2 1\n");
  hypergraph.net_weights[NetId{0}] = 3;
  EXPECT_EQ(format_hgr(hypergraph), "1 2 1\n3 2 1\n");
  hypergraph.vertex_weights[VertexId{0}] = {4, 5};
  EXPECT_EQ(format_hgr(hypergraph), "1 2 11 2\n3 2 1\n4 5\n1 0\n");
}

TEST(Hgr, SaysWhereAFileIsWrong) {
  EXPECT_THAT(hgr_message(""), HasSubstr("f.hgr: line 0: expected a header"));
  EXPECT_THAT(hgr_message("% only\n"), HasSubstr("expected a header"));
  EXPECT_THAT(hgr_message("1\n1\n"), HasSubstr("line 1: expected a number of vertices"));
  EXPECT_THAT(hgr_message("-1 2\n"), HasSubstr("found '-1'"));
  EXPECT_THAT(hgr_message("1 2 2\n1 2\n"), HasSubstr("expected fmt 0, 1, 10 or 11, found 2"));
  EXPECT_THAT(hgr_message("1 2 10 3\n1 2\n"), HasSubstr("expected weights a vertex, from 1 to 2"));
  EXPECT_THAT(hgr_message("1 2 1 2\n1 2\n"), HasSubstr("from 1 to 1, found '2'"));
  EXPECT_THAT(hgr_message("1 2 10 1 1\n1 2\n"), HasSubstr("nothing more, found '1'"));
  EXPECT_THAT(hgr_message("2 2\n1 2\n"), HasSubstr("expected 2 nets, found end of file after 1"));
  EXPECT_THAT(hgr_message("1 2\n1 3\n"),
              HasSubstr("line 2: expected a vertex from 1 to 2, found '3'"));
  EXPECT_THAT(hgr_message("1 2\n0 1\n"), HasSubstr("found '0'"));
  EXPECT_THAT(hgr_message("1 2\n1 x\n"), HasSubstr("found 'x'"));
  EXPECT_THAT(hgr_message("1 2\n1 1.5\n"), HasSubstr("found '1.5'"));
  EXPECT_THAT(hgr_message("1 2\n2 1 2\n"),
              HasSubstr("expected every vertex at most once in a net, found 2 twice"));
  EXPECT_THAT(hgr_message("1 2 1\n5\n"), HasSubstr("expected a vertex from 1 to 2, found none"));
  EXPECT_THAT(hgr_message("1 2 10\n1 2\n5\n"),
              HasSubstr("expected weights of 2 vertices, found end of file after 1"));
  EXPECT_THAT(hgr_message("1 2 10\n1 2\n5 6\n7\n"), HasSubstr("line 3: expected one weight"));
  EXPECT_THAT(hgr_message("1 2 10 2\n1 2\n5\n7 8\n"), HasSubstr("second weight"));
  EXPECT_THAT(hgr_message("1 2 1\n-4 1 2\n"), HasSubstr("found '-4'"));
  EXPECT_THAT(hgr_message("1 2\n1 2\n1 2\n"), HasSubstr("expected the end of the file"));
}

TEST(Hgr, RefusesSizesTheFileCannotHold) {
  EXPECT_THAT(hgr_message("1 2147483646\n1 2\n"),
              HasSubstr("number of vertices the file has room"));
  EXPECT_THAT(hgr_message("2000000000 2\n1 2\n"), HasSubstr("number of nets the file has room"));
  EXPECT_THAT(hgr_message("1 99999999999999999999\n1 2\n"), HasSubstr("99999999999999999999"));
}

TEST(Hgr, RefusesSumsBeyondTheLimit) {
  EXPECT_THAT(hgr_message("1 2 1\n1152921504606846976 1 2\n"), HasSubstr("net weights times pins"));
  EXPECT_THAT(hgr_message("1 2 10\n1 2\n1152921504606846976\n1\n"), HasSubstr("compute weights"));
  EXPECT_THAT(hgr_message("1 2 10 2\n1 2\n0 1152921504606846976\n0 1\n"),
              HasSubstr("data weights"));
}

TEST(PartitionFile, SurvivesBeingWrittenAndRead) {
  const HypergraphPartition partition = {parts({0, 3, 1, 2})};
  EXPECT_EQ(format_partition(partition), "0\n3\n1\n2\n");
  EXPECT_EQ(parse_partition(format_partition(partition), 4, 4, "f").part, partition.part);
  EXPECT_THAT(parse_partition("", 0, 4, "f").part, testing::IsEmpty());
}

TEST(PartitionFile, SaysWhereItIsWrong) {
  const auto message = [](std::string_view text) {
    return message_of([&] { static_cast<void>(parse_partition(text, 2, 3, "f.part")); });
  };
  EXPECT_THAT(message("0\n"), HasSubstr("f.part: line 1: expected one line for each of 2 vertices, "
                                        "found end of file after 1"));
  EXPECT_THAT(message("0\n1\n2\n"), HasSubstr("line 3: expected one line for each of 2"));
  EXPECT_THAT(message("0\n3\n"), HasSubstr("line 2: expected a part from 0 to 2, found '3'"));
  EXPECT_THAT(message("-1\n1\n"), HasSubstr("found '-1'"));
  EXPECT_THAT(message("0 1\n"), HasSubstr("expected one part and nothing more"));
}

TEST(FixFile, AllowsFreeVertices) {
  EXPECT_EQ(parse_fixed("-1\n2\n", 2, 3, "f"), parts({-1, 2}));
  EXPECT_THAT(message_of([] { static_cast<void>(parse_fixed("-2\n0\n", 2, 3, "f.fix")); }),
              HasSubstr("f.fix: line 1: expected a part from -1 to 2, found '-2'"));
}

TEST(HypergraphFiles, GoThroughTheDisk) {
  std::string pattern = (std::filesystem::temp_directory_path() / "contextile-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(pattern.data());
  const std::string path = (folder / "x").string();
  const Hypergraph hypergraph = causal_attention(5);
  write_hgr(hypergraph, path);
  EXPECT_EQ(read_hgr(path), hypergraph);
  write_partition({parts({1, 0})}, path);
  EXPECT_EQ(read_partition(path, 2, 2).part, parts({1, 0}));
  EXPECT_EQ(read_fixed(path, 2, 2), parts({1, 0}));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(static_cast<void>(read_hgr(path)), IoError);
  EXPECT_THROW(write_hgr(hypergraph, path), IoError);
}

}  // namespace
}  // namespace contextile
