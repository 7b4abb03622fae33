// contextile info: what this build can do, and what it cannot and why.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/shared.h"
#include "cli/options/transport_option.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/advanced/gpu.h"
#include "contextile/advanced/store.h"
#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/strategy.h"
#include "contextile/mask.h"
#include "contextile/planner.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr std::size_t kWidestName = 24;

constexpr std::array<Dtype, 3> kDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

// The dtypes for which a kernel is the default: " (preferred for bf16)".
std::string preferred_text(const AttentionKernel& kernel) {
  std::vector<std::string_view> names;
  for (const Dtype dtype : kDtypes) {
    if (&preferred_kernel(dtype) == &kernel) names.push_back(to_string(dtype));
  }
  if (names.empty()) return "";
  if (names.size() == kDtypes.size()) return " (preferred)";
  return fmt::format(" (preferred for {})", fmt::join(names, ", "));
}

// The driver is loaded only by this call.
std::vector<BuildPart> gpu_parts() {
  std::string what;
  std::string missing;
  try {
    const std::int32_t gpus = num_gpus();
    what = fmt::format("bf16 and f16 on GPUs, by run --gpu; {} here", gpus);
    if (gpus == 0) missing = "no GPU here (but --gpu emulated)";
  } catch (const InvalidArgument&) {
    missing = "no NVIDIA driver here (but --gpu emulated)";
  }
  return {{"cuda:wgmma", what + "; those of compute capability 9.0", missing},
          {"cuda:mma", what, missing}};
}

// The parts in the order of kernels(), then the kernels that cannot run here.
std::vector<BuildPart> kernel_parts() {
  const std::string no_instructions =
      "the CPU or the compiler of this build lacks the instructions";
  const std::vector<BuildPart> known = {
      {"simd:avx512", "AVX-512; fp32 arithmetic for every dtype", no_instructions},
      {"simd:avx512_bf16",
       "products of bf16 for bf16 (weights rounded to bf16), else as simd:avx512", no_instructions},
      {"simd:amx_bf16", "AMX tiles for bf16 (weights rounded to bf16), else as simd:avx512",
       no_instructions},
      {"simd:avx2", "AVX2 and FMA; fp32 arithmetic for every dtype", no_instructions},
      {"simd:portable", "vectors of four floats in the compiler's own terms",
       "this build has none"},
      {"reference", "plain loops in fp64: obviously right, slow", "this build has none"}};
  std::vector<BuildPart> parts;
  for (const AttentionKernel* kernel : kernels()) {
    const auto same_name = [kernel](const BuildPart& part) { return part.name == kernel->name(); };
    const auto found = std::find_if(known.begin(), known.end(), same_name);
    const std::string what = found == known.end() ? "forward and backward" : found->what;
    parts.push_back({std::string(kernel->name()), what + preferred_text(*kernel), ""});
  }
  for (const BuildPart& part : known) {
    const auto same_name = [&part](const BuildPart& other) { return part.name == other.name; };
    if (std::none_of(parts.begin(), parts.end(), same_name)) parts.push_back(part);
  }
  for (BuildPart& part : gpu_parts()) parts.push_back(std::move(part));
  return parts;
}

std::vector<BuildPart> store_parts() {
  std::vector<BuildPart> parts;
  for (const StoreKind& kind : store_kinds()) {
    parts.push_back({std::string(kind.scheme), fmt::format("{} ({})", kind.summary, kind.address),
                     std::string(kind.missing)});
  }
  return parts;
}

std::vector<std::string> cpu_flags() {
  std::vector<std::string> flags;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") != 0) flags.emplace_back("avx2");
  if (__builtin_cpu_supports("fma") != 0) flags.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f") != 0) flags.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bf16") != 0) flags.emplace_back("avx512bf16");
#elif defined(__aarch64__)
  flags.emplace_back("neon");
#endif
  return flags;
}

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, " "));
}

std::string parts_text(const std::vector<BuildPart>& parts) {
  Table table({{"name", "name"}, {"", "built in"}});
  for (const BuildPart& part : parts) {
    table.add_row({part.name}, part.missing.empty() ? part.what : "not built in: " + part.missing);
  }
  return table.text();
}

Json parts_json(const std::vector<BuildPart>& parts) {
  Json document = Json::array();
  for (const BuildPart& part : parts) {
    document.push_back({{"name", part.name}, {"built_in", part.missing.empty()}});
    if (!part.missing.empty()) document.back()["reason"] = part.missing;
  }
  return document;
}

std::string named_text(const auto& items) {
  Table table({{"name", "name"}, {"", "description"}}, kWidestName);
  for (const auto& item : items)
    table.add_row({std::string(item.name)}, std::string(item.description));
  return table.text();
}

// A preset's hardware, then every constant whose source is known.
std::string clusters_text() {
  constexpr std::size_t kWidestConstant = 29;  // inter_gbytes_per_s_per_node
  constexpr std::size_t kLongestValue = 40;    // not those of a grid
  Table table({{"name", "name"}, {"", "description"}}, kWidestConstant);
  for (const ClusterPreset& preset : cluster_presets()) {
    table.add_row({std::string(preset.name)}, std::string(preset.description));
    const Json constants = Json::parse(to_json(preset.cluster));
    for (const ConstantSource& source : preset.sources) {
      const std::string key(source.key);
      const std::string value = constants.value(key, Json()).dump();
      const bool is_short = value != "null" && value.size() <= kLongestValue;
      table.add_row({"  " + key}, fmt::format("{}{}{}", is_short ? value + ", " : "",
                                              source.assumed ? "assumed: " : "", source.source));
    }
  }
  return table.text();
}

std::string engines_text() {
  Table table({{"name", "name"}, {"", "description"}}, kWidestName);
  for (const EnginePreset& engine : engine_presets()) {
    std::string text(engine.description);
    for (const EngineCost& cost : engine_costs()) {
      const double value = engine.costs.*cost.member;
      if (value > 0) text += fmt::format("; {} {:g}", cost.key, value);
    }
    table.add_row({std::string(engine.name)}, text);
  }
  return table.text();
}

std::string gpu_kernels_text() {
  Table table({{"name", "name"}, {"", "description"}}, kWidestName);
  for (const GpuKernel& kernel : gpu_kernels()) {
    table.add_row({std::string(kernel.name)},
                  fmt::format("{}: {} TFLOP/s; {}", fmt::join(kernel.presets, ", "),
                              kernel.attention_tflops, kernel.description));
  }
  return table.text();
}

std::string strategies_text() {
  Table table({{"name", "name"}, {"", "description"}}, kWidestName);
  for (const Strategy* strategy : strategies()) {
    table.add_row({std::string(strategy->name())}, std::string(strategy->summary()));
    for (const OptionSpec& option : strategy->options()) {
      table.add_row({fmt::format("  {}={}", option.name, option.default_value)}, option.help);
    }
  }
  return table.text();
}

Json strategies_json() {
  Json document = Json::array();
  for (const Strategy* strategy : strategies()) {
    Json options = Json::array();
    for (const OptionSpec& option : strategy->options()) {
      options.push_back(
          {{"name", option.name}, {"default", option.default_value}, {"help", option.help}});
    }
    document.push_back({{"name", strategy->name()},
                        {"summary", strategy->summary()},
                        {"options", std::move(options)}});
  }
  return document;
}

Json info_json() {
  Json presets = Json::array();
  for (const ClusterPreset& preset : cluster_presets()) {
    presets.push_back(Json::parse(to_json(preset.cluster)));
    presets.back()["description"] = preset.description;
    Json sources = Json::object();
    for (const ConstantSource& source : preset.sources) {
      sources[std::string(source.key)] = {{"source", source.source}, {"assumed", source.assumed}};
    }
    presets.back()["sources"] = std::move(sources);
  }
  Json engines = Json::array();
  for (const EnginePreset& engine : engine_presets()) {
    engines.push_back({{"name", engine.name}, {"description", engine.description}});
    for (const EngineCost& cost : engine_costs()) {
      engines.back()[cost.key] = engine.costs.*cost.member;
    }
  }
  Json gpus = Json::array();
  for (const GpuKernel& kernel : gpu_kernels()) {
    gpus.push_back({{"name", kernel.name},
                    {"presets", kernel.presets},
                    {"attention_tflops", kernel.attention_tflops},
                    {"call_us", kernel.attention.call_us},
                    {"description", kernel.description}});
  }
  Json sets = Json::array();
  for (const Dataset& dataset : datasets()) {
    sets.push_back({{"name", dataset.name}, {"description", dataset.description}});
  }
  Json preferred;
  for (const Dtype dtype : kDtypes) {
    preferred[std::string(to_string(dtype))] = preferred_kernel(dtype).name();
  }
  return {{"command", "info"},
          {"version", version()},
          {"compiler", __VERSION__},
          {"cpu", cpu_flags()},
          {"hardware_threads", std::thread::hardware_concurrency()},
          {"transports", parts_json(transport_parts())},
          {"stores", parts_json(store_parts())},
          {"kernels", parts_json(kernel_parts())},
          {"preferred_kernel", preferred_kernel(Dtype::kBf16).name()},
          {"preferred_kernels", std::move(preferred)},
          {"clusters", std::move(presets)},
          {"gpu_kernels", std::move(gpus)},
          {"engines", std::move(engines)},
          {"strategies", strategies_json()},
          {"datasets", std::move(sets)},
          {"masks", mask_spec_help()}};
}

std::string info_text() {
  std::string text =
      fmt::format("contextile {}, compiler {}\nCPU: {}; {} hardware threads\n", version(),
                  __VERSION__, joined(cpu_flags()), std::thread::hardware_concurrency());
  text += "\nTRANSPORTS\n" + parts_text(transport_parts());
  text += "\nSTORES\n" + parts_text(store_parts());
  text += "\nKERNELS\n" + parts_text(kernel_parts());
  text += "\nCLUSTERS\n" + clusters_text();
  text += "\nGPU KERNELS, for predictions\n" + gpu_kernels_text();
  text += "\nENGINES, for predictions\n" + engines_text();
  text += "\nSTRATEGIES\n" + strategies_text();
  text += "\nDATASETS\n" + named_text(datasets());
  text += "\nMASKS\n" + mask_spec_help();
  if (text.back() != '\n') text += '\n';
  return text;
}

}  // namespace

Action add_info_command(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  auto reference = std::make_shared<bool>(false);
  add_json_option(app, *json);
  add_switch(app, "--reference", *reference,
             "every command and option as Markdown, the generated part of docs/cli.md");
  add_examples(app, {"contextile info", "contextile info --json"});
  return [json, reference, &app] {
    if (*json && *reference) {
      fail_argument("expected either --json or --reference, found both");
    }
    if (*reference) {
      print(reference_markdown(app));
    } else if (*json) {
      print_json(info_json());
    } else {
      print(info_text());
    }
    return kExitOk;
  };
}

}  // namespace contextile
