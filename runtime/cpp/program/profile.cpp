#include "profile.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "timing.h"

namespace hydrant {
namespace {

constexpr std::size_t kTokens = 128;

std::vector<std::size_t> sequences_of(const Predictor& predictor, const Arguments& arguments) {
  const std::size_t longest = predictor.longest();
  const std::string most = std::to_string(longest);
  if (arguments.sequences.empty()) return {predictor.reads_images() ? longest : std::min(kTokens, longest)};
  if (predictor.reads_images()) {
    throw InputError("sequence was given; an image always has " + most + " tokens here, so leave it out");
  }
  for (const std::size_t sequence : arguments.sequences) {
    if (sequence > longest) throw InputError("sequence is " + std::to_string(sequence) + "; expected 1 to " + most);
  }
  return arguments.sequences;
}

OrderedJson latency_json(const Latency& latency) {
  return {{"p50", latency.p50},     {"p90", latency.p90},
          {"p95", latency.p95},     {"p99", latency.p99},
          {"mean", latency.mean},   {"variation", latency.variation},
          {"drift", latency.drift}, {"iterations", latency.iterations}};
}

std::string cell(double value, const char* form) {
  char text[40];
  static_cast<void>(std::snprintf(text, sizeof text, form, value));
  return text;
}

}  // namespace

OrderedJson profile(const Predictor& predictor, const Arguments& arguments) {
  const Rules rules{arguments.seconds, arguments.iterations, Rules().warm_up};
  const std::vector<std::size_t> sequences = sequences_of(predictor, arguments);
  std::vector<std::string> warnings = busy();
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
      for (std::string& text :
           instabilities("batch " + std::to_string(batch) + ", " + std::to_string(sequence) + " tokens", latency)) {
        warnings.push_back(std::move(text));
      }
    }
  }
  OrderedJson skipped = OrderedJson::array();
  for (const Fallback& each : predictor.fallbacks())
    skipped.push_back({{"backend", each.backend}, {"reason", each.reason}});
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
          {"skipped", skipped}};
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
