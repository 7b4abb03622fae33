// Every reader of files, while another thread cuts its file short and writes it again.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/extend/hypergraph.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "contextile/serving/completion_server.h"
#include "contextile/serving/decoder_model.h"
#include "contextile/serving/serve_simulation.h"
#include "serving/model/tensor_source.h"
#include "serving/server/tokenizer_file.h"
#include "support/batches.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class FilesThatChange : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("contextile_readers_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Reads the file again and again while it changes. Every time it is read whole or refused.
  void read_while_it_changes(const std::string& name, const std::string& content,
                             const std::function<void(const std::string& path)>& read) const {
    SCOPED_TRACE(name);
    const std::string path = folder_ / name;
    const auto write = [&] { std::ofstream(path, std::ios::binary) << content; };
    write();
    read(path);
    std::atomic<bool> done = false;
    std::thread writer([&] {
      while (!done) {
        EXPECT_EQ(::truncate(path.c_str(), 100), 0);
        write();
      }
    });
    for (int i = 0; i < 100; ++i) {
      try {
        read(path);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
    }
    done = true;
    writer.join();
  }

  fs::path folder_;
};

// Blanks, which JSON and lists of numbers may end with.
std::string padded(const std::string& text) { return text + std::string(200'000, ' '); }

TEST_F(FilesThatChange, OfPlansAndTheirInputsAreReadOrRefused) {
  const Workload workload = batch_of({30'000, 5'000, 9'000});
  save_plan(*plan_batch(workload, cluster_of(1, 4), {"zigzag"}, {}).plan, folder_ / "saved");
  read_while_it_changes("plan", text_of(folder_ / "saved"),
                        [](const std::string& path) { static_cast<void>(load_plan(path)); });
  std::string lengths;
  for (int i = 0; i < 40'000; ++i) lengths += std::to_string(1 + i % 999) + "\n";
  read_while_it_changes("lengths", lengths,
                        [](const std::string& path) { static_cast<void>(read_lengths(path)); });
  read_while_it_changes(
      "mask.json", padded(R"({"bands":[[0,100,0,100,null,0]]})"),
      [](const std::string& path) { static_cast<void>(read_mask_file(path, 100)); });
  read_while_it_changes("cluster.json", padded(R"({"preset":"p4de","nodes":2})"),
                        [](const std::string& path) { static_cast<void>(load_cluster(path)); });
  const std::vector<Range> sequences = {{0, 100}};
  read_while_it_changes(
      "layout.json", padded(R"({"home":[[0,100,0]]})"),
      [&](const std::string& path) { static_cast<void>(load_layout(path, sequences, 2)); });
  std::string nets = "20000 3\n";
  for (int i = 0; i < 20'000; ++i) nets += "1 2 3\n";
  read_while_it_changes("nets.hgr", nets,
                        [](const std::string& path) { static_cast<void>(read_hgr(path)); });
}

TEST_F(FilesThatChange, OfModelsAreReadOrRefused) {
  // These files are refused in any case, for what they say. They must only not end the process.
  const auto refused = [](const auto& read) {
    return [read](const std::string& path) {
      try {
        read(path);
      } catch (const InvalidArgument&) {
      }
    };
  };
  const std::string text = padded("{}");
  read_while_it_changes("model.json", text, refused([](const std::string& path) {
                          static_cast<void>(load_model(path));
                        }));
  read_while_it_changes("config.json", text, refused([](const std::string& path) {
                          static_cast<void>(read_decoder_config(fs::path(path).parent_path()));
                        }));
  read_while_it_changes("generation_config.json", text, refused([](const std::string& path) {
                          static_cast<void>(read_generation_defaults(fs::path(path).parent_path()));
                        }));
  read_while_it_changes("tokenizer.json", text, refused([](const std::string& path) {
                          static_cast<void>(read_tokenizer_file(path));
                        }));
  read_while_it_changes(
      "trace", text, refused([](const std::string& path) { static_cast<void>(read_trace(path)); }));
  const std::string header = R"({"t":{"dtype":"F32","shape":[50000],"data_offsets":[0,200000]}})";
  std::string weights(8, '\0');
  weights[0] = static_cast<char>(header.size());
  weights += header + std::string(200'000, '\0');
  std::vector<float> values(50'000);
  read_while_it_changes("model.safetensors", weights, [&](const std::string& path) {
    safetensors_source(fs::path(path).parent_path())
        ->read({"t", 50'000, 0, {0, 50'000}, {0, 1}}, values);
  });
}

}  // namespace
}  // namespace contextile
