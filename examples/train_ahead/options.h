// The options on train_ahead's command line.
#pragma once

#include <cstdint>
#include <string>

#include "contextile/advanced/lookahead.h"

struct Options {
  std::string store;  // address, as open_store takes it; empty: of this process
  std::string run_id = "train";
  bool is_help = false;
  bool is_planner = false;
  std::int32_t rank = -1;  // -1: all ranks as threads of this process
  std::int32_t ranks = 4;
  std::string rendezvous;  // of ranks that are processes: tcp://HOST:PORT of rank 0, file:///FOLDER
  std::string interface;   // of the network that ranks use; empty: the one that leads to rank 0
  std::int64_t steps = 20;
  std::int64_t first_step = 0;
  std::int64_t tokens = 1024;  // of a batch
  std::string dataset = "prolong";
  std::int64_t plan_steps = 100'000;  // of auto's search
  std::int32_t ahead = 4;
  std::int32_t threads = 1;       // that plan
  std::int64_t check_every = 10;  // every so many steps against the oracle; 0: never
  std::int64_t claim_ms = 2000;
};

extern const char* const kUsage;

// Throws std::invalid_argument that names the wrong option.
[[nodiscard]] Options parse_options(int argc, char** argv);
// The same for planners and ranks.
[[nodiscard]] contextile::PlanJob job_of(const Options& options);
