// The communication of a decoding step over an emulated link, and the part of it that HOP-B hides.
//
//   hop_b_bench [--batch 16] [--context 16384] [--latency-us 1000] [--mbytes-per-s 30] [--repeats
//   5]
//
// Two ranks as threads, one thread each, decode a batch whose requests share one long prompt (4
// layers, 16 heads of 64, 2 KV heads, hidden 512, fp32). Messages move between them at once, but
// `wait` returns when they would have come over a link of the given latency and rate. First the
// logits of every reading of HOP-B are compared with those without (exit 1 beyond 1e-4). Then it
// runs steps of all in turn and prints medians over the repeats, of the slower rank: the time of a
// step, how long it waits for messages, and how long the messages would take one after another.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contextile/serving/decoder_model.h"
#include "read_options.h"
#include "transport/forwarding_transport.h"

namespace contextile {
namespace {

struct Options {
  std::int32_t batch = 16;
  std::int64_t context = 16'384;
  double latency_us = 1000;
  double mbytes_per_s = 30;
  int repeats = 5;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The time when the n-th message from one rank to another would have come; ranks share one clock.
class LinkClock {
 public:
  explicit LinkClock(const Options& options) : options_(options) {}

  // A rank's messages leave one after another.
  double send(Rank from, Rank to, std::int64_t bytes) {
    const double busy_s = static_cast<double>(bytes) / (1e6 * options_.mbytes_per_s);
    const std::lock_guard lock(mutex_);
    double& free_s = free_s_[from];
    free_s = std::max(free_s, now_s()) + busy_s;
    arrivals_[{from, to}].push_back(free_s + 1e-6 * options_.latency_us);
    return busy_s + 1e-6 * options_.latency_us;
  }
  [[nodiscard]] double arrival_s(Rank from, Rank to, std::size_t n) {
    const std::lock_guard lock(mutex_);
    return arrivals_[{from, to}].at(n);
  }

 private:
  const Options options_;
  std::mutex mutex_;
  std::map<Rank, double> free_s_;
  std::map<std::pair<Rank, Rank>, std::vector<double>> arrivals_;
};

// A transport whose messages take as long as the link says.
class LinkedTransport final : public ForwardingTransport {
 public:
  LinkedTransport(Transport& inner, LinkClock& clock) : ForwardingTransport(inner), clock_(clock) {}

  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    if (!is_linked_) return ForwardingTransport::launch(sends, recvs);
    for (const Message& message : sends) {
      link_s_ += clock_.send(rank(), message.peer, message.size_bytes());
    }
    const std::int64_t ticket = ForwardingTransport::launch(sends, recvs);
    for (const Message& message : recvs) {
      expected_[ticket].emplace_back(message.peer, received_[message.peer]++);
    }
    return ticket;
  }
  void wait(std::int64_t ticket) override {
    const double begin_s = now_s();
    ForwardingTransport::wait(ticket);
    for (const auto& [peer, n] : expected_[ticket]) {
      const double left_s = clock_.arrival_s(peer, rank(), n) - now_s();
      if (left_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left_s));
    }
    expected_.erase(ticket);
    waited_s_ += now_s() - begin_s;
  }
  // Takes effect from here on. Every rank calls it when it has no message open.
  void set_linked(bool is_linked) { is_linked_ = is_linked; }
  // Times since the last call: seconds in `wait`, and seconds of messages one after another.
  [[nodiscard]] std::pair<double, double> take_times() {
    return {std::exchange(waited_s_, 0), std::exchange(link_s_, 0)};
  }

 private:
  LinkClock& clock_;
  bool is_linked_ = false;
  std::map<Rank, std::size_t> received_;
  std::map<std::int64_t, std::vector<std::pair<Rank, std::size_t>>> expected_;
  double waited_s_ = 0;
  double link_s_ = 0;
};

struct Setting {
  HopBReading reading = HopBReading::kOff;
  std::int32_t groups = 1;
};

struct StepTimes {
  std::vector<double> step_s;
  std::vector<double> waited_s;
  std::vector<double> link_s;
};

DecoderConfig model() {
  DecoderConfig config;
  config.hidden_size = 512;
  config.q_heads = 16;
  config.head_dim = 64;
  config.ffn_size = 2048;
  return config;
}

// A rank with the prompt in its cache, and the batch's next step.
class Batch {
 public:
  Batch(Transport& transport, const Options& options, const Setting& setting)
      : rank_(transport, model(),
              random_weights(model(), {transport.rank(), transport.size(), true}, 7),
              decoder_of(transport, options, setting)) {
    const KvLayout layout = layout_of(transport);
    const std::int64_t shared = options.context / layout.block_tokens();
    std::vector<PageId> prompt;
    for (std::int32_t p = 0; p < shared; ++p) prompt.emplace_back(p);
    for (std::int64_t p = 0; p < shared * layout.block_tokens(); ++p) {
      tokens_.push_back(static_cast<std::int32_t>((p * p * 31 + 7 * p + 3) % 251));
    }
    constexpr std::int64_t kChunk = 1024;
    for (std::int64_t first = 0; first < static_cast<std::int64_t>(tokens_.size());
         first += kChunk) {
      const auto its = std::span(tokens_).subspan(static_cast<std::size_t>(first));
      const StepRequest chunk = {its.first(std::min<std::size_t>(its.size(), kChunk)), first,
                                 prompt, false};
      static_cast<void>(rank_.forward(std::span(&chunk, 1)));
    }
    tables_.assign(static_cast<std::size_t>(options.batch), prompt);
    for (std::int32_t i = 0; i < options.batch; ++i) {
      tables_[static_cast<std::size_t>(i)].emplace_back(static_cast<std::int32_t>(shared) + i);
    }
  }

  [[nodiscard]] HostTensor step() {
    std::vector<StepRequest> requests;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      requests.push_back({std::span(tokens_).subspan(i, 1),
                          static_cast<std::int64_t>(tokens_.size()), tables_[i], true});
    }
    return rank_.forward(requests);
  }

 private:
  static KvLayout layout_of(const Transport& transport) { return {transport.size(), 16, 16}; }
  static DecoderOptions decoder_of(const Transport& transport, const Options& options,
                                   const Setting& setting) {
    DecoderOptions decoder;
    decoder.layout = layout_of(transport);
    decoder.num_pages =
        static_cast<std::int32_t>(decoder.layout.num_blocks(options.context)) + options.batch;
    decoder.hop_b = setting.reading;
    decoder.hop_b_groups = setting.groups;
    return decoder;
  }

  DecoderRank rank_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::vector<PageId>> tables_;
};

struct Found {
  std::vector<StepTimes> times;  // by setting
  std::vector<double> far;       // the logits' largest distance from the first setting's
};

void step_once(LinkedTransport& transport, Batch& batch, StepTimes& times) {
  barrier(transport);
  transport.set_linked(true);
  static_cast<void>(transport.take_times());
  const double begin_s = now_s();
  static_cast<void>(batch.step());
  times.step_s.push_back(now_s() - begin_s);
  const auto [waited_s, link_s] = transport.take_times();
  times.waited_s.push_back(waited_s);
  times.link_s.push_back(link_s);
  transport.set_linked(false);
}

Found measure(Transport& inner, LinkClock& clock, const Options& options,
              const std::vector<Setting>& settings) {
  LinkedTransport transport(inner, clock);
  std::vector<std::unique_ptr<Batch>> batches;
  Found found;
  found.times.resize(settings.size());
  HostTensor expected;
  for (const Setting& setting : settings) {
    batches.push_back(std::make_unique<Batch>(transport, options, setting));
    const HostTensor logits = batches.back()->step();
    if (batches.size() == 1) expected = logits;
    double far = 0;
    for (std::size_t i = 0; i < logits.values<float>().size(); ++i) {
      const double apart = std::abs(logits.values<float>()[i] - expected.values<float>()[i]);
      far = std::max(far, std::isnan(apart) ? INFINITY : apart);
    }
    found.far.push_back(far);
  }
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      step_once(transport, *batches[i], found.times[i]);
    }
  }
  return found;
}

double median_ms(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return 1e3 * seconds[seconds.size() / 2];
}

int run(const Options& options) {
  std::vector<Setting> settings = {{}};
  for (const HopBReading reading : {HopBReading::kAttention, HopBReading::kFeedForward}) {
    for (const std::int32_t groups : {2, 4, 8}) settings.push_back({reading, groups});
  }
  LinkClock clock(options);
  std::vector<Found> ranks(2);
  run_inproc(2, [&](Transport& transport) {
    ranks[transport.rank().index()] = measure(transport, clock, options, settings);
  });
  fmt::print("{} requests of {} tokens, link of {:.0f} us and {:.0f} MB/s\n", options.batch,
             options.context, options.latency_us, options.mbytes_per_s);
  fmt::print("{:14}{:>7}{:>10}{:>13}{:>12}\n", "hop-b", "groups", "step ms", "waiting ms",
             "messages ms");
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (std::max(ranks[0].far[i], ranks[1].far[i]) > 1e-4) {
      fmt::print("{}, {} groups: logits differ by {}\n", to_string(settings[i].reading),
                 settings[i].groups, ranks[0].far[i]);
      return 1;
    }
    const auto slower = [&](std::vector<double> StepTimes::*times) {
      return std::max(median_ms(ranks[0].times[i].*times), median_ms(ranks[1].times[i].*times));
    };
    fmt::print("{:14}{:>7}{:>10.1f}{:>13.1f}{:>12.1f}\n", to_string(settings[i].reading),
               settings[i].groups, slower(&StepTimes::step_s), slower(&StepTimes::waited_s),
               slower(&StepTimes::link_s));
  }
  return 0;
}

int main_of(int argc, char** argv) {
  Options options;
  bench::read_options(
      argc, argv,
      {{"--batch", [&](const char* value) { options.batch = std::atoi(value); }},
       {"--context", [&](const char* value) { options.context = std::atoll(value); }},
       {"--latency-us", [&](const char* value) { options.latency_us = std::atof(value); }},
       {"--mbytes-per-s", [&](const char* value) { options.mbytes_per_s = std::atof(value); }},
       {"--repeats", [&](const char* value) { options.repeats = std::atoi(value); }}});
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  return run(options);
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }
