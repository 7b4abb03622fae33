// Plans of the original system for batches of sampled documents. Items, loads and bytes must be the
// same, in the same order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "strategy/distca/distca.h"
#include "strategy/distca/distca_tasks.h"

namespace contextile {
namespace {

using nlohmann::json;

// Appends an item's shards in the file's form: queries and last key of each, or one shard for a
// whole document.
void append_shards(const CaItem& item, std::int64_t length, json& out) {
  if (item.head.queries.begin == 0 && item.tail.queries.end == length &&
      item.head.queries.end == item.tail.queries.begin) {
    out.insert(out.end(), {length, length});
    return;
  }
  for (const CaShard& shard : {item.head, item.tail}) {
    out.insert(out.end(), {shard.queries.size(), shard.keys.end});
  }
}

class DistcaVectors : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::filesystem::path path =
        std::filesystem::path(CONTEXTILE_GOLDEN) / "distca" / (GetParam() + ".json");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
    file_ = json::parse(std::ifstream(path));
    for (const json& batch : file_["batch"]) {
      for (const json& length : batch) lengths_.push_back(length.get<std::int64_t>());
    }
    for (std::size_t d = 0; d < lengths_.size(); ++d) {
      documents_.push_back({static_cast<std::int32_t>(d), {0, lengths_[d]}});
    }
    num_devices_ = file_["servers"];
    const bool small = file_["model"] == "llama8b";
    q_bytes_ = 2 * (small ? 4096 : 8192);  // hidden size in bf16
    kv_bytes_ = 2 * 2 * 128 * (small ? 8 : 16);
    options_.tolerance = file_["tolerance"];
    options_.kv = KvAccounting::kDocument;
    options_.granularity_tokens = 1;
    options_.balance = TaskBalance::kOneSided;
    options_.fidelity = Fidelity::kUpstream;
    options_.q_bytes_per_token = static_cast<double>(q_bytes_);
    options_.kv_bytes_per_token = static_cast<double>(kv_bytes_);
  }

  [[nodiscard]] std::vector<CaItem> plan() const {
    std::vector<CaItem> items = place_documents(documents_, num_devices_);
    migrate(items, num_devices_, options_);
    return items;
  }

  json file_;
  std::vector<std::int64_t> lengths_;
  std::vector<DocumentRows> documents_;
  std::int32_t num_devices_ = 0;
  std::int64_t q_bytes_ = 0;
  std::int64_t kv_bytes_ = 0;
  MigrationOptions options_;
};

TEST_P(DistcaVectors, PlacesTheSameItems) {
  json placed = json::array();
  for (const CaItem& item : place_documents(documents_, num_devices_)) {
    const std::int64_t length = lengths_[static_cast<std::size_t>(item.document)];
    json entry = {item.document, item.source.value, length};
    append_shards(item, length, entry);
    placed.push_back(entry);
  }
  EXPECT_EQ(placed, file_["placed_items"]);
}

TEST_P(DistcaVectors, MigratesTheSameItemsInTheSameOrder) {
  json planned = json::array();
  for (const CaItem& item : plan()) {
    const std::int64_t length = lengths_[static_cast<std::size_t>(item.document)];
    json entry = {item.document, item.source.value, item.server.value, length};
    append_shards(item, length, entry);
    planned.push_back(entry);
  }
  EXPECT_EQ(planned, file_["planned_items"]);
}

TEST_P(DistcaVectors, BalancesToTheSameLoads) {
  const auto as_numbers = [](const std::vector<double>& loads) {
    json result = json::array();
    for (const double load : loads) result.push_back(static_cast<std::int64_t>(load));
    return result;
  };
  const std::vector<CaItem> placed = place_documents(documents_, num_devices_);
  EXPECT_EQ(as_numbers(server_loads(placed, num_devices_, options_)), file_["flops_before"]);
  EXPECT_EQ(as_numbers(server_loads(plan(), num_devices_, options_)), file_["flops_after"]);
}

TEST_P(DistcaVectors, MovesTheSameBytes) {
  const CaVolume volume = forward_volume(plan(), num_devices_, q_bytes_, kv_bytes_);
  EXPECT_EQ(volume.q_bytes, file_["fwd_bytes_q"].get<std::int64_t>());
  EXPECT_EQ(volume.kv_bytes, file_["fwd_bytes_kv"].get<std::int64_t>());
  EXPECT_EQ(volume.o_bytes, file_["fwd_bytes_o"].get<std::int64_t>());
  std::int64_t most_sent = 0;
  std::int64_t most_received = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(num_devices_); ++d) {
    most_sent = std::max(most_sent, volume.input_sent_bytes[d] + volume.output_sent_bytes[d]);
    most_received =
        std::max(most_received, volume.input_received_bytes[d] + volume.output_received_bytes[d]);
  }
  EXPECT_EQ(most_sent, file_["fwd_max_send"].get<std::int64_t>());
  EXPECT_EQ(most_received, file_["fwd_max_recv"].get<std::int64_t>());
}

TEST_P(DistcaVectors, APlanMovesTheSameBytes) {
  AttentionShape shape;
  shape.q_heads = file_["model"] == "llama8b" ? 32 : 64;
  shape.kv_heads = file_["model"] == "llama8b" ? 8 : 16;
  const MaskUse causal;
  const Workload workload = make_workload(lengths_, shape, {&causal, 1});
  Cluster cluster;
  cluster.nodes = num_devices_ / 8;
  StrategyRequest request;
  request.options = {{"match_original", "on"}, {"nano_batches", "1"}};
  const DirectionStats forward =
      *statistics(
           build_plan(workload, cluster, distca_strategy().arrange(workload, cluster, request)))
           .forward;
  const std::int64_t lse_bytes =  // one fp32 per head of a moved row
      file_["fwd_bytes_q"].get<std::int64_t>() / q_bytes_ * shape.q_heads * 4;
  const auto bytes = [&](Kind kind) {
    return forward.bytes_by_kind[static_cast<std::size_t>(kind)];
  };
  EXPECT_EQ(bytes(Kind::kQ), file_["fwd_bytes_q"].get<std::int64_t>());
  EXPECT_EQ(bytes(Kind::kKv), file_["fwd_bytes_kv"].get<std::int64_t>());
  EXPECT_EQ(bytes(Kind::kO), file_["fwd_bytes_o"].get<std::int64_t>() + lse_bytes);
  EXPECT_NEAR(forward.compute_overload, file_["imb_after"].get<double>(), 1e-9);
}

std::vector<std::string> vector_names() {
  std::vector<std::string> names;
  for (const char* model : {"llama8b", "llama34b"}) {
    for (const char* servers : {"N8", "N16"}) {
      for (const char* longest : {"128K", "256K", "512K"}) {
        names.push_back(std::string(model) + "_prolong_" + servers + "_" + longest + "_tol0.1_s0");
      }
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Batches, DistcaVectors, ::testing::ValuesIn(vector_names()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace contextile
