#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../src/messages.h"
#include "commands.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMaxVariation = 0.025;  // maximum coefficient of variation without a warning, as in trtexec
constexpr double kMaxDrift = 0.05;       // maximum difference between the medians of both halves

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string cell(double value, const char* form) {
  char text[40];
  static_cast<void>(std::snprintf(text, sizeof text, form, value));
  return text;
}

std::string percent(double share) { return cell(share * 100, "%.1f%%"); }

// Minimum effort of a measurement.
struct Rules {
  double seconds = 3;  // of all repetitions together
  std::size_t iterations = 30;
  double warm_up = 0.2;  // seconds before them
};

// Times in milliseconds.
struct Latency {
  double p50 = 0, p90 = 0, p95 = 0, p99 = 0;  // percentiles, interpolated
  double mean = 0;
  double variation = 0;  // standard deviation ÷ mean
  double drift = 0;      // median of the second half of the repetitions ÷ that of the first, − 1
  std::size_t iterations = 0;
};

std::vector<double> repeat(const std::function<void()>& run, const Rules& rules) {
  const Clock::time_point begin = Clock::now();
  do run();
  while (since(begin) < rules.warm_up);
  std::vector<double> times;
  double spent = 0;
  while (times.size() < rules.iterations || spent < rules.seconds) {
    const Clock::time_point start = Clock::now();
    run();
    times.push_back(since(start));
    spent += times.back();
  }
  return times;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

Latency latency_of(const std::vector<double>& seconds) {
  const auto count = static_cast<double>(seconds.size());
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double squares = 0;
  for (const double each : seconds) squares += (each - mean) * (each - mean);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  const double drift = seconds.size() < 2
                           ? 0
                           : percentile({middle, seconds.end()}, 0.5) / percentile({seconds.begin(), middle}, 0.5) - 1;
  const auto ms = [&](double share) { return percentile(seconds, share) * 1e3; };
  return {ms(0.5), ms(0.9), ms(0.95), ms(0.99), mean * 1e3, std::sqrt(squares / count) / mean, drift, seconds.size()};
}

std::vector<std::string> stability_warnings(const std::string& name, const Latency& latency) {
  std::vector<std::string> warnings;
  if (latency.variation > kMaxVariation) {
    warnings.push_back(name + ": times varied by " + percent(latency.variation) +
                       " (standard deviation ÷ mean); close other programs, or use more --seconds");
  }
  if (std::abs(latency.drift) > kMaxDrift) {
    warnings.push_back(name + ": the medians of both halves differ by " + percent(std::abs(latency.drift)) +
                       ", since the machine changed its speed; measure again");
  }
  return warnings;
}

std::vector<std::string> load_warnings() {
  double load = 0;
  const auto cores = std::max(std::thread::hardware_concurrency(), 1U);
  if (getloadavg(&load, 1) != 1 || load <= cores) return {};
  return {concat("the load average was ", cell(load, "%.1f"), " on ", cores, " cores; close other programs")};
}

constexpr std::size_t kTokens = 128;

std::vector<std::size_t> sequences_of(const Predictor& predictor, const Arguments& arguments) {
  const std::size_t longest = predictor.longest();
  if (arguments.sequences.empty()) return {predictor.reads_images() ? longest : std::min(kTokens, longest)};
  if (predictor.reads_images())
    throw InputError(concat("--sequence is for texts; images always have ", longest, " tokens here: leave it out"));
  for (const std::size_t sequence : arguments.sequences)
    if (sequence > longest) throw InputError(concat("sequence is ", sequence, "; expected 1 to ", longest));
  return arguments.sequences;
}

OrderedJson latency_json(const Latency& latency) {
  return {{"p50", latency.p50},     {"p90", latency.p90},
          {"p95", latency.p95},     {"p99", latency.p99},
          {"mean", latency.mean},   {"variation", latency.variation},
          {"drift", latency.drift}, {"iterations", latency.iterations}};
}

}  // namespace

OrderedJson profile(const Predictor& predictor, const Arguments& arguments) {
  const Rules rules{arguments.seconds, arguments.iterations, Rules().warm_up};
  const std::vector<std::size_t> sequences = sequences_of(predictor, arguments);
  std::vector<std::string> warnings = load_warnings();
  OrderedJson cases = OrderedJson::array();
  for (const std::size_t sequence : sequences) {
    for (const std::size_t batch : arguments.batches) {
      const Tensors inputs = predictor.synthetic(batch, sequence, arguments.seed);
      const Latency latency = latency_of(repeat([&] { predictor.run(inputs); }, rules));
      const std::size_t most = predictor.chunk(batch, sequence), parts = (batch + most - 1) / most;
      cases.push_back({{"model", "fused"},
                       {"backend", predictor.backend()},
                       {"precision", predictor.precision()},
                       {"batch", batch},
                       {"sequence", sequence},
                       {"chunk", (batch + parts - 1) / parts},
                       {"latency_ms", latency_json(latency)},
                       {"throughput", static_cast<double>(batch) / latency.mean * 1e3}});
      for (std::string& text : stability_warnings(concat("batch ", batch, ", ", sequence, " tokens"), latency))
        warnings.push_back(std::move(text));
    }
  }
  const OrderedJson threads = arguments.options.threads ? OrderedJson(*arguments.options.threads) : OrderedJson();
  return {{"hydrant", version()},
          {"family", predictor.family()},
          {"members", predictor.members()},
          {"machine",
           {{"cores", std::thread::hardware_concurrency()}, {"versions", {{"onnxruntime", onnxruntime_version()}}}}},
          {"settings",
           {{"batches", arguments.batches},
            {"sequences", sequences},
            {"threads", threads},
            {"rules", {{"seconds", rules.seconds}, {"iterations", rules.iterations}, {"warm_up", rules.warm_up}}},
            {"seed", arguments.seed}}},
          {"cases", cases},
          {"warnings", warnings},
          {"skipped", skipped_json(predictor)}};
}

std::string profile_text(const OrderedJson& report) {
  const OrderedJson& first = report["cases"][0];
  const OrderedJson& threads = report["settings"]["threads"];
  std::string text = report["family"].get<std::string>() + ", " + report["members"].dump() + " members, on " +
                     report["machine"]["cores"].dump() + " cores, " + (threads.is_null() ? "default" : threads.dump()) +
                     " thread(s), onnxruntime " + onnxruntime_version() + "\n" + first["backend"].get<std::string>() +
                     " " + first["precision"].get<std::string>() +
                     "\n\nbatch  tokens  chunk    p50 ms       p90       p95       p99  inputs/s\n";
  for (const OrderedJson& each : report["cases"]) {
    text += cell(each["batch"], "%5.0f") + cell(each["sequence"], "%8.0f") + cell(each["chunk"], "%7.0f");
    for (const char* name : {"p50", "p90", "p95", "p99"}) text += cell(each["latency_ms"][name], "%10.2f");
    text += cell(each["throughput"], "%10.1f") + "\n";
  }
  for (const auto& warning : report["warnings"]) text += "\nwarning: " + warning.get<std::string>();
  for (const auto& each : report["skipped"])
    text += "\nskipped " + each["backend"].get<std::string>() + ": " + each["reason"].get<std::string>();
  return text + "\n";
}

}  // namespace hydrant
