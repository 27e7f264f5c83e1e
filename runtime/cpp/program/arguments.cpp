#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include "../src/messages.h"

namespace hydrant {
namespace {

constexpr std::size_t kLargestBatch = 4096, kLongest = 1U << 20U, kLongestTime = 86400;  // the last in seconds

// An option as it was given.
struct Value {
  const std::string& name;
  const std::string text;

  template <typename Number>
  Number number(Number least, Number most, const std::string& expected) const {
    Number found{};
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), found);
    if (failed == std::errc() && end == text.data() + text.size() && found >= least && found <= most) return found;
    throw InputError(name + " is " + cut(text) + "; expected " + expected);
  }

  std::size_t whole(std::size_t least, std::size_t most) const {
    return number(least, most, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }

  double seconds() const {
    return number<double>(0, kLongestTime, "a number of seconds from 0 to " + std::to_string(kLongestTime));
  }

  // Numbers with commas between them, each once.
  std::vector<std::size_t> numbers(std::size_t most) const {
    std::vector<std::size_t> found;
    for (std::size_t start = 0; start <= text.size();) {
      const std::size_t end = std::min(text.find(',', start), text.size());
      const std::size_t each = Value{name, text.substr(start, end - start)}.whole(1, most);
      if (std::find(found.begin(), found.end(), each) == found.end()) found.push_back(each);
      start = end + 1;
    }
    return found;
  }
};

constexpr std::size_t kShortestToken = 8, kLongestToken = 4096;

// The secret in a file, without the white space around it; it is never shown.
std::string token_in(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string token(kLongestToken + 1, '\0');
  stream.read(token.data(), static_cast<std::streamsize>(token.size()));
  if (!stream.is_open() || stream.bad())
    throw InputError("cannot read " + cut(file) + "; expected the file of a token");
  token.resize(static_cast<std::size_t>(stream.gcount()));
  const char* const space = " \t\r\n";
  token.erase(std::min(token.find_last_not_of(space) + 1, token.size()));
  token.erase(0, std::min(token.find_first_not_of(space), token.size()));
  const bool plain = std::all_of(token.begin(), token.end(), [](char each) { return each > ' ' && each < 0x7F; });
  if (!plain || token.size() < kShortestToken || token.size() > kLongestToken) {
    throw InputError("the token in " + cut(file) +
                     (plain ? " has " + std::to_string(token.size()) + " characters"
                            : " holds a space, a line break or what is not ASCII") +
                     "; expected 8 to 4096 printable ASCII characters, such as `openssl rand -hex 32` gives");
  }
  return token;
}

using Set = void (*)(Arguments& arguments, const Value& value);

struct Option {
  const char* name;
  const char* value;  // the name of its value in the help; null for a switch
  const char* help;
  Set set;
  const char* with = nullptr;     // the option that it goes with
  const char* without = nullptr;  // those of --profile and --serve that it says nothing for
};

constexpr Option kOptions[] = {
    {"--input", "FILE",
     "File of tensors or uint8 images (.npz, .npy), a JPEG or PNG image, or a text on each line (- for standard "
     "input); "
     "may be repeated",
     [](auto& a, auto& v) { a.inputs.push_back({v.text, std::nullopt, true}); }},
    {"--pair", "TEXT TEXT", "Pair of texts, for a model that reads pairs; once for each",
     [](auto& a, auto& v) { a.inputs.push_back({v.text, "", false}); }},
    {"--backend", "NAME", "Backend that runs the bundle: auto (the first that can run), or one of --list-backends",
     [](auto& a, auto& v) { a.options.backend = v.text; }},
    {"--precision", "KIND", "Precision to run: fp32, fp16, bf16 or int8; without it the backend chooses",
     [](auto& a, auto& v) { a.options.precision = v.text; }},
    {"--threads", "N", "Threads within one run; without it the backend's default",
     [](auto& a, auto& v) { a.options.threads = static_cast<int>(v.whole(1, 65536)); }},
    {"--batch-size", "N", "Most inputs in one run; memory grows with it (32)",
     [](auto& a, auto& v) { a.options.batch_size = v.whole(1, kLargestBatch); }, nullptr, "--profile"},
    {"--provider-library", "FILE", "Plug-in of ONNX Runtime with which tensorrt-rtx runs the graph, without an engine",
     [](auto& a, auto& v) { a.options.provider_library = v.text; }},
    {"--trust", "FILE", "PEM file of the public key, or of the issuers, that the bundle must be signed by",
     [](auto& a, auto& v) { a.options.trust = v.text; }},
    {"--probabilities", nullptr, "Also print the probability of every class",
     [](auto& a, auto&) { a.telling.probabilities = true; }, nullptr, "--profile --serve"},
    {"--aggregation", "KIND",
     "What a word takes of its tokens, of a model that tags tokens: first, mean or max (first)",
     [](auto& a, auto& v) { a.telling.aggregation = aggregation_of(v.text); }, nullptr, "--profile --serve"},
    {"--json", nullptr, "Print one JSON object", [](auto& a, auto&) { a.json = true; }, nullptr, "--serve"},
    {"--list-backends", nullptr, "List the backends, and why some cannot run on this machine",
     [](auto& a, auto&) { a.list_backends = true; }},
    {"--profile", nullptr, "Measure latency and throughput on synthetic inputs",
     [](auto& a, auto&) { a.profile = true; }},
    {"--batch", "N,N", "Batch sizes to profile (1,8)", [](auto& a, auto& v) { a.batches = v.numbers(kLargestBatch); },
     "--profile"},
    {"--sequence", "N,N", "Lengths of texts to profile, in tokens (128, or the most that the model reads)",
     [](auto& a, auto& v) { a.sequences = v.numbers(kLongest); }, "--profile"},
    {"--seconds", "S", "Seconds for which each case is profiled, at least (3)",
     [](auto& a, auto& v) { a.seconds = v.seconds(); }, "--profile"},
    {"--iterations", "N", "Repetitions of each profiled case, at least (30)",
     [](auto& a, auto& v) { a.iterations = v.whole(1, 1U << 20U); }, "--profile"},
    {"--seed", "N", "Seed for the inputs that are profiled (0)",
     [](auto& a, auto& v) { a.seed = v.whole(0, SIZE_MAX); }, "--profile"},
    {"--serve", nullptr, "Answer over HTTP (Open Inference Protocol, and /predict) until SIGTERM",
     [](auto& a, auto&) { a.serve = true; }},
    {"--host", "HOST", "Address to listen on; 0.0.0.0 for all (127.0.0.1)",
     [](auto& a, auto& v) { a.serving.host = v.text; }, "--serve"},
    {"--port", "N", "Port to listen on; 0 for one of the system's choice (8000)",
     [](auto& a, auto& v) { a.serving.port = static_cast<std::uint16_t>(v.whole(0, 65535)); }, "--serve"},
    {"--workers", "N", "Requests that are worked on at once; memory grows with it (2)",
     [](auto& a, auto& v) { a.serving.workers = v.whole(1, 256); }, "--serve"},
    {"--queue", "N", "Most requests that wait; a further one is answered with 503 (64)",
     [](auto& a, auto& v) { a.serving.queue = v.whole(1, 65536); }, "--serve"},
    {"--max-bytes", "N", "Largest body of a request, in bytes; a larger one is answered with 413 (8388608)",
     [](auto& a, auto& v) { a.serving.body = v.whole(1, 1U << 30U); }, "--serve"},
    {"--max-inputs", "N", "Most inputs of a request; one of more is answered with 413 (1024)",
     [](auto& a, auto& v) { a.serving.inputs = v.whole(1, 1U << 30U); }, "--serve"},
    {"--max-pixels", "N", "Most pixels of all pictures of a request; one of more is answered with 413 (33554432)",
     [](auto& a, auto& v) { a.serving.pixels = v.whole(1, 1ULL << 40U); }, "--serve"},
    {"--transfer-timeout", "S", "Seconds that a request may take to come, and its answer to go (60)",
     [](auto& a, auto& v) { a.serving.transfer = std::chrono::seconds(v.whole(1, kLongestTime)); }, "--serve"},
    {"--token-file", "FILE", "File with a secret that clients send as Authorization: Bearer SECRET",
     [](auto& a, auto& v) { a.serving.token = token_in(v.text); }, "--serve"},
    {"--verbose", nullptr, "Print to standard error which backend runs, and why others were skipped",
     [](auto& a, auto&) { a.verbose = true; }},
    {"--version", nullptr, "Print the version", [](auto& a, auto&) { a.version = true; }},
    {"--help", nullptr, "Print this help", [](auto& a, auto&) { a.help = true; }},
};

const Option& option_of(const std::string& name) {
  const std::string full = name == "-v" ? "--verbose" : name == "-h" ? "--help" : name;
  for (const Option& option : kOptions) {
    if (option.name == full) return option;
  }
  throw InputError("option " + cut(name) + " is unknown; hydrant-run --help lists them");
}

// Refuses an option that would change nothing.
void check_use(const Option& option, const Arguments& arguments) {
  const auto chosen = [&](const std::string& name) { return name == "--serve" ? arguments.serve : arguments.profile; };
  if (option.with != nullptr && !chosen(option.with))
    throw InputError(std::string(option.name) + " goes with " + option.with + "; leave it out");
  for (const char* mode : {"--profile", "--serve"}) {
    const bool idle = option.without != nullptr && std::string(option.without).find(mode) != std::string::npos;
    if (idle && chosen(mode))
      throw InputError(std::string(option.name) + " goes with inputs, not with " + mode + "; leave it out");
  }
}

void check(const Arguments& arguments, const std::vector<const Option*>& given) {
  if (arguments.help || arguments.version || arguments.list_backends) return;
  if (arguments.bundle.empty()) throw InputError("no bundle was given; expected hydrant-run BUNDLE --input FILE");
  if (arguments.profile && arguments.serve) throw InputError("--profile and --serve are given; expected one of them");
  if (arguments.profile && !arguments.inputs.empty())
    throw InputError("--profile measures synthetic inputs; leave the inputs out");
  if (arguments.serve && !arguments.inputs.empty())
    throw InputError("--serve takes its inputs from requests; leave the inputs out");
  for (const Option* option : given) check_use(*option, arguments);
  if (!arguments.profile && !arguments.serve && arguments.inputs.empty()) {
    throw InputError("no input was given; expected hydrant-run BUNDLE --input FILE, or --profile, or --serve");
  }
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& words) {
  Arguments arguments;
  std::vector<const Option*> given;
  bool named = false;  // a bundle was given, which may be an empty word
  bool ended = false;  // behind --, where every word is an input
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!ended && word == "--") {
      ended = true;
      continue;
    }
    if (ended || word.size() < 2 || word[0] != '-') {
      if (!named) {
        arguments.bundle = word;
        named = true;
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
      if (attached || i + 1 == words.size())
        throw InputError("--pair lacks a text; expected --pair TEXT TEXT, each a word of its own to the shell");
      arguments.inputs.back().pair = words[++i];
    }
    given.push_back(&option);
  }
  check(arguments, given);
  return arguments;
}

std::string help_text() {
  std::string text =
      "usage: hydrant-run BUNDLE [--input] FILE ...     predictions for tensors or images, as JSON lines\n"
      "       hydrant-run BUNDLE [--] TEXT ...          the same for texts, where the bundle has a tokenizer.onnx;\n"
      "                                                 behind -- they may begin with a -\n"
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
