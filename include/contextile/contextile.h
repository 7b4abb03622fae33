// Everything, and in which order to read it. Only mpi_transport.h is left out: it is not built
// everywhere, and its library is linked by name (contextile::transport_mpi).
//
// From lengths to a verified plan:
#pragma once

#include "contextile/base.h"        // ids, ranges, errors
#include "contextile/cluster.h"     // devices, links, costs: what it is planned for
#include "contextile/mask.h"        // bands, mask rules, blocks, tiles
#include "contextile/planner.h"     // plan_batch, compare_strategies: start here
#include "contextile/strategies.h"  // the strategies' options as types
#include "contextile/workload.h"    // sequences, attention shape, masks: what is planned
// What a plan is, and what is done with it:
#include "contextile/bounds.h"         // the time no plan undercuts
#include "contextile/critical_path.h"  // why it takes that time
#include "contextile/plan.h"           // five instructions a device
#include "contextile/plan_file.h"      // files, digests, JSON
#include "contextile/plan_stats.h"     // bytes, balance, memory
#include "contextile/report.h"         // the HTML page, traces
#include "contextile/sensitivity.h"    // which constants of a cluster a comparison hangs on
#include "contextile/simulate.h"       // time on any cluster
#include "contextile/token_layout.h"   // which rank holds which tokens
#include "contextile/verify.h"         // proof
// Running plans:
#include "contextile/executor.h"          // one rank: forward, backward
#include "contextile/flight_record.h"     // what ranks did when their group failed
#include "contextile/inproc_attention.h"  // all ranks, on tensors of your own: start here
#include "contextile/kernel.h"            // attention on tiles
#include "contextile/oracle.h"            // attention in fp64, checked runs
#include "contextile/profile.h"           // measuring this machine
#include "contextile/scatter.h"           // tensors of the batch to ranks and back
#include "contextile/tensor.h"            // views, tensors, bf16 and f16
#include "contextile/transport.h"         // messages between ranks
// Batches and whole training steps:
#include "contextile/batch_sampler.h"   // a run's batches, any step's
#include "contextile/data.h"            // lengths, datasets, batches, home layouts
#include "contextile/lookahead.h"       // planning while others execute
#include "contextile/membership.h"      // who goes on when ranks are lost
#include "contextile/model.h"           // sizes of models
#include "contextile/packing.h"         // documents into micro-batches
#include "contextile/pipeline.h"        // pipeline schedules
#include "contextile/plan_estimate.h"   // how much planning would make
#include "contextile/step_planner.h"    // a step from lengths
#include "contextile/store.h"           // values that processes share
#include "contextile/training.h"        // what a step takes
#include "contextile/workload_input.h"  // what front ends are given, as a workload
// Inference:
#include "contextile/decode.h"           // a step over a cache that ranks share
#include "contextile/helix.h"            // what a step takes when devices share tokens
#include "contextile/hop_b.h"            // what the exchange of a step hides behind
#include "contextile/kv_cache.h"         // tables of requests, shared prefixes
#include "contextile/kv_layout.h"        // which rank holds which cached tokens
#include "contextile/paged_attention.h"  // few queries, keys in pages
#include "contextile/prefill.h"          // new tokens that ranks share, over such a cache
#include "contextile/prefill_choice.h"   // which mode of it
#include "contextile/prefill_plan.h"     // the same by a plan
#include "contextile/shard_merge.h"      // one softmax from several ranks' keys
// Making plans of your own:
#include "contextile/arrangement.h"  // what a strategy returns
#include "contextile/hypergraph.h"   // the general partitioner
#include "contextile/id_vector.h"    // arrays indexed by ids
#include "contextile/partition.h"    // the partitioner of tile grids
#include "contextile/plan_build.h"   // from an arrangement to a plan
#include "contextile/progress.h"     // how far long work has come
#include "contextile/registry.h"     // the strategies there are
#include "contextile/schedule.h"     // words of layouts and schedules
#include "contextile/strategy.h"     // the interface of strategies
#include "contextile/version.h"      // of the library
