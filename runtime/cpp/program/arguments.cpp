#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include "../src/messages.h"

namespace hydrant {
namespace {

constexpr std::size_t kMaxBatch = 4096, kMaxTokens = 1U << 20U, kMaxSeconds = 86400;

// An option's value.
struct Value {
  const std::string& name;
  const std::string text;

  template <typename Number>
  Number number(Number least, Number most, const std::string& expected) const {
    Number parsed{};
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (failed == std::errc() && end == text.data() + text.size() && parsed >= least && parsed <= most) return parsed;
    throw InputError(name + " is " + cut(text) + "; expected " + expected);
  }

  std::size_t whole(std::size_t least, std::size_t most) const {
    return number(least, most, concat("a whole number from ", least, " to ", most));
  }

  double seconds() const {
    return number<double>(0, kMaxSeconds, concat("a number of seconds from 0 to ", kMaxSeconds));
  }

  // Comma-separated numbers, without repetitions.
  std::vector<std::size_t> numbers(std::size_t most) const {
    std::vector<std::size_t> all;
    for (std::size_t start = 0; start <= text.size();) {
      const std::size_t end = std::min(text.find(',', start), text.size());
      const std::size_t each = Value{name, text.substr(start, end - start)}.whole(1, most);
      if (std::find(all.begin(), all.end(), each) == all.end()) all.push_back(each);
      start = end + 1;
    }
    return all;
  }
};

constexpr std::size_t kMinTokenLength = 8, kMaxTokenLength = 4096;

// The secret in a file, without surrounding white space; messages never contain it.
std::string token_in(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string token(kMaxTokenLength + 1, '\0');
  stream.read(token.data(), static_cast<std::streamsize>(token.size()));
  if (!stream.is_open() || stream.bad()) throw InputError("cannot read " + cut(file) + "; expected a token file");
  token.resize(static_cast<std::size_t>(stream.gcount()));
  const char* const space = " \t\r\n";
  token.erase(std::min(token.find_last_not_of(space) + 1, token.size()));
  token.erase(0, std::min(token.find_first_not_of(space), token.size()));
  const bool plain = std::all_of(token.begin(), token.end(), [](char each) { return each > ' ' && each < 0x7F; });
  if (!plain || token.size() < kMinTokenLength || token.size() > kMaxTokenLength) {
    throw InputError("the token in " + cut(file) +
                     (plain ? concat(" has ", token.size(), " characters") : " has spaces or non-ASCII characters") +
                     "; expected 8 to 4096 printable ASCII characters, as from `openssl rand -hex 32`");
  }
  return token;
}

using Set = void (*)(Arguments& arguments, const Value& value);

struct Option {
  const char* name;
  const char* value;  // the name of its value in the help; null for a switch
  const char* help;
  Set set;
  const char* with = nullptr;     // required option
  const char* without = nullptr;  // incompatible modes: --profile, --serve
};

constexpr Option kOptions[] = {
    {"--input", "FILE",
     "Tensors or uint8 images (.npz, .npy), a JPEG or PNG image, or one text per line (- for stdin); repeatable",
     [](auto& a, auto& v) { a.inputs.push_back({v.text, std::nullopt, true}); }},
    {"--pair", "TEXT TEXT", "Pair of texts; repeatable",
     [](auto& a, auto& v) { a.inputs.push_back({v.text, "", false}); }},
    {"--backend", "NAME", "Backend: auto (the first that can run), or one of --list-backends",
     [](auto& a, auto& v) { a.options.backend = v.text; }},
    {"--precision", "KIND", "Precision: fp32, fp16, bf16 or int8 (the backend's choice)",
     [](auto& a, auto& v) { a.options.precision = v.text; }},
    {"--threads", "N", "Threads per run (the backend's default)",
     [](auto& a, auto& v) { a.options.threads = static_cast<int>(v.whole(1, 65536)); }},
    {"--batch-size", "N", "Maximum inputs per run; memory grows with it (32)",
     [](auto& a, auto& v) { a.options.batch_size = v.whole(1, kMaxBatch); }, nullptr, "--profile"},
    {"--provider-library", "FILE", "ONNX Runtime plug-in with which tensorrt-rtx runs the graph, without an engine",
     [](auto& a, auto& v) { a.options.provider_library = v.text; }},
    {"--trust", "FILE", "PEM file with the public key or issuers that must have signed the bundle",
     [](auto& a, auto& v) { a.options.trust = v.text; }},
    {"--probabilities", nullptr, "Also print the probability of every class",
     [](auto& a, auto&) { a.rows.probabilities = true; }, nullptr, "--profile --serve"},
    {"--aggregation", "KIND", "How token predictions are aggregated into words: first, mean or max (first)",
     [](auto& a, auto& v) { a.rows.aggregation = aggregation_of(v.text); }, nullptr, "--profile --serve"},
    {"--json", nullptr, "Print one JSON object", [](auto& a, auto&) { a.json = true; }, nullptr, "--serve"},
    {"--list-backends", nullptr, "List backends, and why some cannot run on this machine",
     [](auto& a, auto&) { a.list_backends = true; }},
    {"--profile", nullptr, "Measure latency and throughput on synthetic inputs",
     [](auto& a, auto&) { a.profile = true; }},
    {"--batch", "N,N", "Batch sizes to profile (1,8)", [](auto& a, auto& v) { a.batches = v.numbers(kMaxBatch); },
     "--profile"},
    {"--sequence", "N,N", "Text lengths to profile, in tokens (128, or the model's maximum)",
     [](auto& a, auto& v) { a.sequences = v.numbers(kMaxTokens); }, "--profile"},
    {"--seconds", "S", "Minimum seconds per profiled case (3)", [](auto& a, auto& v) { a.seconds = v.seconds(); },
     "--profile"},
    {"--iterations", "N", "Minimum repetitions per profiled case (30)",
     [](auto& a, auto& v) { a.iterations = v.whole(1, 1U << 20U); }, "--profile"},
    {"--seed", "N", "Seed of the synthetic inputs (0)", [](auto& a, auto& v) { a.seed = v.whole(0, SIZE_MAX); },
     "--profile"},
    {"--serve", nullptr, "Serve over HTTP (Open Inference Protocol and /predict) until SIGTERM",
     [](auto& a, auto&) { a.serve = true; }},
    {"--host", "HOST", "Address to listen on; 0.0.0.0 for all (127.0.0.1)",
     [](auto& a, auto& v) { a.serving.host = v.text; }, "--serve"},
    {"--port", "N", "Port to listen on; 0 for any free port (8000)",
     [](auto& a, auto& v) { a.serving.port = static_cast<std::uint16_t>(v.whole(0, 65535)); }, "--serve"},
    {"--workers", "N", "Concurrent requests; memory grows with it (2)",
     [](auto& a, auto& v) { a.serving.workers = v.whole(1, 256); }, "--serve"},
    {"--queue", "N", "Maximum waiting requests; more are rejected with 503 (64)",
     [](auto& a, auto& v) { a.serving.queue = v.whole(1, 65536); }, "--serve"},
    {"--max-bytes", "N", "Maximum body size in bytes; larger ones are rejected with 413 (8388608)",
     [](auto& a, auto& v) { a.serving.body = v.whole(1, 1U << 30U); }, "--serve"},
    {"--max-inputs", "N", "Maximum inputs per request; more are rejected with 413 (1024)",
     [](auto& a, auto& v) { a.serving.inputs = v.whole(1, 1U << 30U); }, "--serve"},
    {"--max-pixels", "N", "Maximum pixels of all images per request; more are rejected with 413 (33554432)",
     [](auto& a, auto& v) { a.serving.pixels = v.whole(1, 1ULL << 40U); }, "--serve"},
    {"--transfer-timeout", "S", "Maximum seconds to receive a request or send its response (60)",
     [](auto& a, auto& v) { a.serving.transfer = std::chrono::seconds(v.whole(1, kMaxSeconds)); }, "--serve"},
    {"--token-file", "FILE", "File with a secret that clients must send as Authorization: Bearer SECRET",
     [](auto& a, auto& v) { a.serving.token = token_in(v.text); }, "--serve"},
    {"--verbose", nullptr, "Print the running backend, and why others were skipped, to stderr",
     [](auto& a, auto&) { a.verbose = true; }},
    {"--version", nullptr, "Print the version", [](auto& a, auto&) { a.version = true; }},
    {"--help", nullptr, "Print this help", [](auto& a, auto&) { a.help = true; }},
};

const Option& option_of(const std::string& name) {
  const std::string full = name == "-v" ? "--verbose" : name == "-h" ? "--help" : name;
  for (const Option& option : kOptions) {
    if (option.name == full) return option;
  }
  throw InputError("option " + cut(name) + " is unknown; see hydrant-run --help");
}

// Throws InputError: the option has no effect.
void check_use(const Option& option, const Arguments& arguments) {
  const auto chosen = [&](const std::string& name) { return name == "--serve" ? arguments.serve : arguments.profile; };
  if (option.with != nullptr && !chosen(option.with))
    throw InputError(std::string(option.name) + " needs " + option.with + "; leave it out");
  for (const char* mode : {"--profile", "--serve"}) {
    const bool idle = option.without != nullptr && std::string(option.without).find(mode) != std::string::npos;
    if (idle && chosen(mode))
      throw InputError(std::string(option.name) + " has no effect with " + mode + "; leave it out");
  }
}

void check(const Arguments& arguments, const std::vector<const Option*>& options) {
  if (arguments.help || arguments.version || arguments.list_backends) return;
  if (arguments.bundle.empty()) throw InputError("the bundle is missing; expected hydrant-run BUNDLE --input FILE");
  if (arguments.profile && arguments.serve)
    throw InputError("--profile and --serve exclude each other; use one of them");
  if (arguments.profile && !arguments.inputs.empty())
    throw InputError("--profile measures synthetic inputs; leave the inputs out");
  if (arguments.serve && !arguments.inputs.empty())
    throw InputError("--serve takes its inputs from requests; leave the inputs out");
  for (const Option* option : options) check_use(*option, arguments);
  if (!arguments.profile && !arguments.serve && arguments.inputs.empty())
    throw InputError("no input; expected hydrant-run BUNDLE --input FILE, or --profile, or --serve");
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& words) {
  Arguments arguments;
  std::vector<const Option*> options;
  bool has_bundle = false;  // its name may be empty
  bool ended = false;       // after --, every word is an input
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!ended && word == "--") {
      ended = true;
      continue;
    }
    if (ended || word.size() < 2 || word[0] != '-') {
      if (!has_bundle) {
        arguments.bundle = word;
        has_bundle = true;
      } else {
        arguments.inputs.push_back({word, std::nullopt, false});
      }
      continue;
    }
    const std::size_t equals = word.compare(0, 2, "--") == 0 ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const Option& option = option_of(name);
    const bool attached = equals != std::string::npos;
    if (option.value == nullptr && attached)
      throw InputError(name + " takes no value; leave " + cut(word.substr(equals)) + " out");
    if (option.value != nullptr && !attached && i + 1 == words.size())
      throw InputError(name + " lacks its value; expected " + name + " " + option.value);
    option.set(arguments, {name, option.value == nullptr ? "" : attached ? word.substr(equals + 1) : words[++i]});
    if (option.name == std::string("--pair")) {
      if (attached || i + 1 == words.size()) throw InputError("--pair lacks a text; expected --pair TEXT TEXT");
      arguments.inputs.back().pair = words[++i];
    }
    options.push_back(&option);
  }
  check(arguments, options);
  return arguments;
}

std::string help_text() {
  std::string text =
      "usage: hydrant-run BUNDLE [--input] FILE ...     predictions for tensors or images, as JSON lines\n"
      "       hydrant-run BUNDLE [--] TEXT ...          the same for texts, with tokenizer.onnx in the bundle;\n"
      "                                                 after --, texts may begin with -\n"
      "       hydrant-run BUNDLE --profile --batch 1,8  latency and throughput\n"
      "       hydrant-run BUNDLE --serve --port 8000    the same predictions over HTTP\n"
      "       hydrant-run --list-backends\n\n";
  for (const Option& option : kOptions) {
    std::string left =
        std::string("  ") + option.name + (option.value == nullptr ? "" : std::string(" ") + option.value);
    left.resize(std::max<std::size_t>(left.size() + 2, 26), ' ');
    text += left + option.help + "\n";
  }
  return text;
}

}  // namespace hydrant
