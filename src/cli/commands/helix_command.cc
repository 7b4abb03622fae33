// contextile helix: the times of decoding steps, and what fits, when devices share the tokens of a
// cache.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/helix_setting.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/serving/helix.h"
#include "report/helix_tables.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

struct HelixOptions {
  HelixSettingOptions setting;
  std::vector<std::int64_t> contexts = {8 << 10, 128 << 10, 1 << 20};
  std::vector<std::int32_t> batches = {1, 8, 64};
  std::vector<std::int32_t> devices;  // empty: kDevices
  HopB hop_b;
  std::vector<std::int64_t> prompts;
  std::optional<std::int32_t> front;  // most requests
  bool json = false;
  bool csv = false;
};
constexpr std::int32_t kDevices[] = {8, 16, 64};  // unless given, as many as reach each other

HelixStudy study_of(const HelixOptions& options) {
  HelixStudy study;
  study.model = helix_model_of(options.setting);
  study.hardware = helix_hardware_of(options.setting);
  study.contexts = options.contexts;
  study.batches = options.batches;
  study.devices = options.devices;
  study.hop_b = options.hop_b;
  study.prompts = options.prompts;
  if (study.devices.empty()) {
    std::ranges::copy_if(kDevices, std::back_inserter(study.devices), [&](std::int32_t devices) {
      return devices <= study.hardware.max_devices;
    });
  }
  for (const std::int32_t devices : study.devices) {
    if (helix_layouts(study.model, devices).empty()) {
      fail_argument(
          "--devices: expected a number that heads and feed-forward of {} can be split "
          "over, found {}",
          study.model.shape.name, devices);
    }
  }
  return study;
}

void print_tables(const HelixStudy& study, const std::optional<HelixSearch>& search) {
  std::string text = describe_helix(study);
  text +=
      "\none step, the fastest layout of each family that fits; all but CP share out the\n"
      "feed-forward; for attention TP shares heads, DP requests, CP and Helix tokens;\n"
      "layout: KVP x TPA (DP: DP x TPA) / TPF x EP\n\n";
  text += helix_time_table(study).text();
  const auto [shortest, longest] = std::ranges::minmax(study.contexts);
  text += fmt::format(
      "\nwhere context parallelism loses: with {} tokens, and until which context,\n"
      "looked for up to {} tokens, memory left aside\n\n",
      shortest, longest);
  text += helix_loss_table(study).text();
  text += "\nlongest context that fits, tokens\n\n" + helix_context_table(study).text();
  text += "\nmost requests that fit\n\n" + helix_batch_table(study).text();
  text += fmt::format("\nwhere the time goes: context {}, batch {}, {} devices\n\n",
                      study.contexts.back(), study.batches.back(), study.devices.back());
  text += helix_parts_table(study).text();
  if (!study.prompts.empty()) {
    text += fmt::format(
        "\ntime to the first token of one prompt in one step, at {} TFLOP/s;\n"
        "own rows: groups of TPA devices compute theirs, by this mode; else all rows,\n"
        "as in decoding\n\n",
        study.hardware.tflops);
    text += helix_prompt_table(study).text();
  }
  if (search) {
    text += fmt::format("\nPareto front: context {}, batches up to {}\n\n", search->context,
                        search->batches.back());
    text += helix_front_table(study, *search).text();
    text += "\nHelix against others, at most\n\n" + helix_gain_table(study, *search).text();
  }
  print(text);
}

Json json_of(const HelixStudy& study, const std::optional<HelixSearch>& search) {
  Json document = {{"command", "helix"}};
  document.update(helix_setting_json(study));
  document["times"] = helix_time_table(study).json();
  document["losses"] = helix_loss_table(study).json();
  document["contexts"] = helix_context_table(study).json();
  document["batches"] = helix_batch_table(study).json();
  document["parts"] = helix_parts_table(study).json();
  if (!study.prompts.empty()) {
    document["tflops"] = study.hardware.tflops;
    document["prompts"] = helix_prompt_table(study).json();
  }
  if (search) {
    document["front"] = helix_front_table(study, *search).json();
    document["gains"] = helix_gain_table(study, *search).json();
  }
  return document;
}

int run(const HelixOptions& options) {
  check_formats(options.json, options.csv);
  const HelixStudy study = study_of(options);
  std::optional<HelixSearch> search;
  if (options.front) search = helix_search_of(study, *options.front);
  if (options.json) {
    print_json(json_of(study, search));
  } else if (options.csv) {
    print(helix_time_table(study).csv());
  } else {
    print_tables(study, search);
  }
  return kExitOk;
}

}  // namespace

Action add_helix_command(CLI::App& app) {
  auto options = std::make_shared<HelixOptions>();
  add_text(app, "--model", options->setting.model,
           {"NAME|FILE", "{}, or a .json file", "", helix_model_names()});
  add_element_options(app, options->setting);
  add_hardware_options(app, options->setting);
  add_sizes(app, "--contexts", options->contexts,
            {"N,...", "tokens of every request's history", "8K,128K,1M"});
  add_sizes(app, "--batches", options->batches,
            {"N,...", "requests that decode at the same time", "1,8,64"});
  add_sizes(app, "--devices", options->devices,
            {"N,...", "devices that serve them together", "8,16,64, as many as there are"});
  add_value(app, "--hop-b",
            {"off|attention|feed_forward",
             "what the exchange of partial outputs hides behind: the attention of the next "
             "requests, or the feed-forward of those before",
             "attention"},
            [options = options.get()](const std::string& text) {
              options->hop_b.reading = parse_hop_b(text);
            });
  add_size<std::int32_t>(
      app, "--groups", options->hop_b.groups, 0,
      {"N", "hop-b: groups of requests that take turns, a divisor of every batch; 0: the fastest",
       ""});
  add_sizes(app, "--prompts", options->prompts,
            {"N,...", "also the times to the first token of one prompt of so many tokens", ""});
  add_size_as<std::int32_t>(app, "--pareto", options->front, 1,
                            {"N",
                             "also the front of tokens/s a user against tokens/s a device, "
                             "last context, batches 1, 2, 4, ... N",
                             ""});
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "the table of times");
  add_examples(app, {"contextile helix",
                     "contextile helix --model deepseek-r1 --devices 8,64 --contexts 1M "
                     "--pareto 4K",
                     "contextile helix --model llama-3-8b --hardware h100 --weight-bytes 2 "
                     "--kv-bytes 2 --devices 8 --prompts 100K"});
  show_first(app, {"--model", "--hardware", "--contexts", "--batches", "--devices", "--prompts",
                   "--pareto", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile
