// contextile-labs network: the simulator against a second model of the network, and the order of
// strategies on machines that are not as predicted.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "cli/commands/command.h"
#include "cli/help.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/planner.h"
#include "labs/network/network_study.h"
#include "labs/program.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr double kAim = 0.05;  // by which times of the two models may differ
constexpr std::size_t kWidestName = 34;
constexpr double kSecondsPerUs = 1e-6;

constexpr const char* queue_name(ChunkQueue queue) {
  return queue == ChunkQueue::kFair ? "fair" : "fifo";
}

struct NetworkOptions {
  StudyOptions study;
  bool json = false;
  bool csv = false;
};

Table plans_table(const std::vector<StudiedSetting>& studied) {
  Table table({{"setting", "setting"},
               {"strategy", "strategy"},
               {"simulated_s", "simulated\nms", Format::kMilliseconds},
               {"chunks_s", "chunks\nms", Format::kMilliseconds},
               {"ratio", "ratio"},
               {"met", "met", Format::kVerdict}});
  for (const StudiedSetting& setting : studied) {
    for (const StudiedPlan& plan : setting.plans) {
      table.add_row({std::string(setting.setting->name), choice_text(plan.choice),
                     kSecondsPerUs * plan.simulated_us, kSecondsPerUs * plan.chunk_us, plan.ratio(),
                     std::abs(plan.ratio() - 1) <= kAim});
    }
  }
  return table;
}

// The fastest strategy of each setting as simulated, and the one behind it.
Table winners_table(const std::vector<StudiedSetting>& studied) {
  Table table({{"setting", "setting"},
               {"winner", "fastest"},
               {"winner_s", "ms", Format::kMilliseconds},
               {"second", "second"},
               {"second_slower_by", "slower\nby", Format::kPercent}});
  for (const StudiedSetting& setting : studied) {
    std::vector<StudiedPlan> plans = setting.plans;
    std::ranges::stable_sort(plans, {}, &StudiedPlan::simulated_us);
    table.add_row({std::string(setting.setting->name), choice_text(plans[0].choice),
                   kSecondsPerUs * plans[0].simulated_us, choice_text(plans[1].choice),
                   plans[1].simulated_us / plans[0].simulated_us - 1});
  }
  return table;
}

// How far the two models are apart.
struct Differences {
  std::int64_t plans = 0;
  std::int64_t within_aim = 0;
  double median = 0;
  double largest = 0;  // by size, with its sign
  std::string largest_of;
};

Differences differences_of(const std::vector<StudiedSetting>& studied) {
  Differences differences;
  std::vector<double> sizes;
  for (const StudiedSetting& setting : studied) {
    for (const StudiedPlan& plan : setting.plans) {
      const double difference = plan.ratio() - 1;
      sizes.push_back(std::abs(difference));
      differences.within_aim += sizes.back() <= kAim ? 1 : 0;
      if (std::abs(difference) < std::abs(differences.largest)) continue;
      differences.largest = difference;
      differences.largest_of =
          fmt::format("{}, {}", setting.setting->name, choice_text(plan.choice));
    }
  }
  differences.plans = std::ssize(sizes);
  const auto middle = sizes.begin() + std::ssize(sizes) / 2;
  std::nth_element(sizes.begin(), middle, sizes.end());
  differences.median = *middle;
  return differences;
}

struct NamedOrders {
  const char* key;
  const char* name;
  OrderChanges StudiedOrders::*orders;
};
constexpr NamedOrders kOrders[] = {
    {"chunks", "chunks", &StudiedOrders::chunks},
    {"constants", "other constants", &StudiedOrders::constants},
    {"chunks_constants", "chunks, other constants", &StudiedOrders::chunks_constants},
    {"noise", "chunks, slow device and jitter", &StudiedOrders::noise}};

Table orders_table(const std::vector<StudiedSetting>& studied) {
  Table table({{"setting", "setting"},
               {"change", "times of"},
               {"draws", "draws"},
               {"other_winners", "other\nwinner"},
               {"mean_loss", "mean\nloss", Format::kPercent},
               {"worst_loss", "worst\nloss", Format::kPercent},
               {"pairs_2", ""},
               {"flipped_2", "flip\n> 2%", Format::kPercent},
               {"pairs_5", ""},
               {"flipped_5", "flip\n> 5%", Format::kPercent},
               {"pairs_10", ""},
               {"flipped_10", "flip\n> 10%", Format::kPercent}},
              kWidestName);
  const auto add = [&](const std::string& name, const StudiedOrders& all) {
    for (const NamedOrders& named : kOrders) {
      const OrderChanges& orders = all.*named.orders;
      if (orders.draws == 0) continue;
      std::vector<Cell> cells = {name,
                                 std::string(named.name),
                                 orders.draws,
                                 orders.other_winners,
                                 orders.mean_loss(),
                                 orders.worst_loss()};
      for (const FlippedPairs& flipped : orders.flipped) {
        cells.emplace_back(flipped.pairs);
        cells.emplace_back(flipped.share());
      }
      table.add_row(std::move(cells));
    }
  };
  StudiedOrders all;
  for (const StudiedSetting& setting : studied) {
    add(std::string(setting.setting->name), setting.orders);
    all.add(setting.orders);
  }
  add("all", all);
  return table;
}

std::string report_text(const NetworkOptions& options, const std::vector<StudiedSetting>& studied) {
  const Differences found = differences_of(studied);
  std::string text = "settings\n";
  for (const StudiedSetting& setting : studied) {
    text += fmt::format("  {:14}{}\n", setting.setting->name, study_text(*setting.setting));
  }
  text += '\n' + plans_table(studied).text(stdout_shows_colour());
  text += fmt::format(
      "\n{} in chunks of {} bytes, {} on their way, {} queues: median difference {:.2f}%, largest "
      "{:+.1f}% ({})\n"
      "aim: within {}: {} ({} of {})\n",
      count(found.plans, "plan"), options.study.chunks.chunk_bytes, options.study.chunks.window,
      queue_name(options.study.chunks.queue), 100 * found.median, 100 * found.largest,
      found.largest_of, percent(kAim), found.within_aim == found.plans ? "met" : "MISSED",
      found.within_aim, found.plans);
  text +=
      "\nfastest strategies as simulated\n" + winners_table(studied).text(stdout_shows_colour());
  text += "\norder of the strategies as simulated, against that of other times\n" +
          orders_table(studied).text(stdout_shows_colour());
  return text + '\n' +
         wrap(fmt::format(
                  "Other constants: each within {} of its own, drawn for every setting. A slow "
                  "device takes {} longer, and jitter has a standard deviation of {}. Loss: what "
                  "the predicted winner takes above the fastest. Flip: pairs that are predicted "
                  "to be further apart, but come in the other order.",
                  percent(options.study.constants_within), percent(options.study.noise.slow_by),
                  percent(options.study.noise.jitter)),
              kTextColumns) +
         '\n';
}

Json report_json(const NetworkOptions& options, const std::vector<StudiedSetting>& studied) {
  const Differences found = differences_of(studied);
  Json settings = Json::object();
  for (const StudiedSetting& setting : studied) {
    settings[std::string(setting.setting->name)] = study_text(*setting.setting);
  }
  return {{"command", "network"},
          {"chunk_bytes", options.study.chunks.chunk_bytes},
          {"window", options.study.chunks.window},
          {"queue", queue_name(options.study.chunks.queue)},
          {"seed", options.study.seed},
          {"layer", options.study.of_layer},
          {"settings", std::move(settings)},
          {"plans", plans_table(studied).json()},
          {"median_difference", found.median},
          {"largest_difference", found.largest},
          {"largest_of", found.largest_of},
          {"within_aim", found.within_aim},
          {"winners", winners_table(studied).json()},
          {"orders", orders_table(studied).json()}};
}

int run(NetworkOptions options) {
  check_formats(options.json, options.csv);
  ProgressBar progress(num_study_plans(options.study));
  options.study.started = [&](const StudySetting& setting, const StrategyChoice& choice) {
    progress.step(fmt::format("{}, {}", setting.name, choice_text(choice)));
  };
  const std::vector<StudiedSetting> studied = study_network(options.study);
  if (options.json) {
    print_json(report_json(options, studied));
  } else {
    print(options.csv ? plans_table(studied).csv() : report_text(options, studied));
  }
  return kExitOk;
}

}  // namespace

Action add_network_command(CLI::App& app) {
  auto options = std::make_shared<NetworkOptions>();
  StudyOptions& study = options->study;
  std::vector<std::string> names;
  for (const StudySetting& setting : study_settings()) names.emplace_back(setting.name);
  add_repeatable(app, "--setting",
                 {"NAME", "a batch and a cluster, one of {}; may be given several times", "all",
                  std::move(names)},
                 [&study](const std::string& name) {
                   study.settings.emplace_back(find_study_setting(name).name);
                 });
  add_size(app, "--chunk-bytes", study.chunks.chunk_bytes, std::int64_t{1},
           {"BYTES", "messages are cut into chunks of that many bytes", ""});
  add_size(app, "--window", study.chunks.window, 1,
           {"N", "chunks of a message that may be on their way at a time", ""});
  add_value(app, "--queue",
            {"fair|fifo", "ports serve messages in turn, or chunks as they come", "fair"},
            [&study](const std::string& text) {
              if (text != "fair" && text != "fifo") {
                fail_argument("--queue: expected fair or fifo, found {}", quote(text));
              }
              study.chunks.queue = text == "fair" ? ChunkQueue::kFair : ChunkQueue::kFifo;
            });
  add_size(app, "--draws", study.draws, 0,
           {"N", "draws of other constants, and of noise, for every setting", ""});
  add_size(app, "--seed", study.seed, std::uint64_t{0}, {"N", "of the draws", ""});
  add_switch(app, "--layer", study.of_layer,
             "times of a layer: linear layers of the device that owns the most tokens count, too");
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "times of the plans");
  add_examples(app, {"contextile-labs network --setting h100 --draws 4",
                     "contextile-labs network --layer --draws 20",
                     "contextile-labs network --chunk-bytes 64K --draws 0"});
  return [options] { return run(*options); };
}

}  // namespace contextile
