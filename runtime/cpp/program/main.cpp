// hydrant-run: predictions from a bundle without Python. Errors are one line on stderr, with exit status 2.
#include <cstdlib>  // before the next line: it defines __GLIBC__
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <optional>
#include <stdexcept>

#include "../src/messages.h"
#include "arguments.h"
#include "ascii.h"
#include "commands.h"
#include "rows.h"

namespace hydrant {
namespace {

// Predictions with the names of their inputs.
struct NamedPrediction {
  Prediction prediction;
  std::vector<OrderedJson> names;
};

constexpr const char* kUnwritten = "cannot write to standard output; is the disk full?";

// A file name's extension in lower case.
std::string ending_of(const std::string& file) { return lowered(std::filesystem::path(file).extension().string()); }

// Returns true for files of arrays, but not for texts that merely end like one.
bool has_arrays(const Predictor& predictor, const InputArgument& input) {
  const std::string ending = ending_of(input.value);
  if (input.pair || (ending != ".npy" && ending != ".npz")) return false;
  std::error_code ignored;
  return input.file || !predictor.reads_texts() || std::filesystem::exists(input.value, ignored);
}

// Throws InputError: the file's lines are not texts.
void check_lines(const std::string& file) {
  const std::string ending = ending_of(file);
  for (const char* each : {".csv", ".tsv", ".jsonl", ".parquet", ".conll", ".bio", ".iob"})
    if (ending == each)
      throw InputError(file + " is a table or has one word per line; expected one text per line: convert it, or use " +
                       "`hydrant predict`");
}

Prediction predict_array(const Predictor& predictor, const Tensor& tensor, std::size_t first) {
  const bool pictures = std::holds_alternative<std::vector<std::uint8_t>>(tensor.data) && predictor.reads_images();
  return pictures ? predictor.predict_images(tensor, first) : predictor.predict(tensor);
}

NamedPrediction predict_arrays(const Predictor& predictor, const std::string& file, std::size_t first) {
  const Tensors tensors = read_tensors(file);
  const auto single = tensors.count("") > 0 ? tensors.find("") : tensors.find("x");  // x: labelled examples
  NamedPrediction rows;
  try {
    rows.prediction =
        single == tensors.end() ? predictor.predict(tensors) : predict_array(predictor, single->second, first);
  } catch (const InputError& error) {
    throw InputError(file + ": " + error.what());
  }
  for (std::size_t i = 0; i < rows.prediction.size(); ++i) rows.names.emplace_back(file + ", row " + std::to_string(i));
  return rows;
}

constexpr std::size_t kMaxLineBytes = 1U << 24U;
constexpr std::string_view kMark = "\xEF\xBB\xBF";  // byte-order mark of UTF-8

// A line without its end (\n and any \r before it); nothing at the end of the stream.
std::optional<std::string> next_line(std::istream& stream, const std::string& name) {
  std::string line;
  for (int each = stream.get(); each != '\n'; each = stream.get()) {
    if (each == std::istream::traits_type::eof()) {
      if (line.empty()) return std::nullopt;
      break;
    }
    if (line.size() == kMaxLineBytes)
      throw InputError(name + " has a line of more than 16 MiB; expected one text per line");
    line.push_back(static_cast<char>(each));
  }
  line.resize(line.find_last_not_of('\r') + 1);
  return line;
}

// Prints rows, or collects them for --json.
class Results {
 public:
  Results(const Predictor& predictor, const Arguments& arguments) : predictor_(predictor), arguments_(arguments) {}

  std::size_t count() const { return count_; }
  OrderedJson& all() { return all_; }

  void take(const NamedPrediction& predicted) {
    for (OrderedJson& row :
         prediction_rows(predictor_, predicted.prediction, predicted.names, count_, arguments_.rows)) {
      if (arguments_.json) {
        all_.push_back(std::move(row));
      } else {
        std::cout << to_line(row);
      }
    }
    count_ += predicted.prediction.size();
    std::cout.flush();
    if (!std::cout) throw std::runtime_error(kUnwritten);  // the reader is gone
  }

 private:
  const Predictor& predictor_;
  const Arguments& arguments_;
  OrderedJson all_ = OrderedJson::array();
  std::size_t count_ = 0;
};

NamedPrediction predict_texts(const Predictor& predictor, const std::vector<Text>& texts, std::size_t first) {
  NamedPrediction predicted{predictor.predict_texts(texts, first), {}};
  for (const Text& text : texts) predicted.names.push_back(name_of(text));
  return predicted;
}

// Predicts the lines of a file or of standard input in batches.
void predict_lines(const Predictor& predictor, const Arguments& arguments, const std::string& file, Results& results) {
  std::ifstream opened;
  const std::string name = file == "-" ? "standard input" : file;
  check_lines(file);
  if (file != "-") opened.open(file, std::ios::binary);
  std::istream& stream = file == "-" ? std::cin : opened;
  std::error_code ignored;
  if (!stream || (file != "-" && std::filesystem::is_directory(file, ignored)))
    throw InputError("cannot read " + name + "; expected a file with one text per line");
  std::vector<Text> texts;
  const auto flush = [&] {
    if (!texts.empty()) results.take(predict_texts(predictor, texts, results.count()));
    texts.clear();
  };
  bool first = true;
  while (auto line = next_line(stream, name)) {
    if (first && starts_with(*line, kMark)) line->erase(0, kMark.size());
    first = false;
    texts.push_back({std::move(*line), std::nullopt});
    if (texts.size() == arguments.options.batch_size) flush();
  }
  if (stream.bad() || (file == "-" && std::ferror(stdin) != 0))  // std::cin hides failures
    throw InputError("cannot read all of " + name + "; the predictions cover the lines before");
  flush();
}

// Predicts the next inputs: a file of arrays, the lines of a file, or a batch of images or texts.
void predict_next(const Predictor& predictor, const Arguments& arguments, std::size_t& next, Results& results) {
  const std::vector<InputArgument>& inputs = arguments.inputs;
  const auto is_array = [&](std::size_t i) { return has_arrays(predictor, inputs[i]); };
  if (is_array(next)) return results.take(predict_arrays(predictor, inputs[next++].value, results.count()));
  const bool images = predictor.reads_images();
  const auto has_lines = [&](std::size_t i) {
    return !images && (inputs[i].file || (inputs[i].value == "-" && !inputs[i].pair));
  };
  if (has_lines(next)) return predict_lines(predictor, arguments, inputs[next++].value, results);
  std::vector<std::filesystem::path> files;
  std::vector<Text> texts;
  const std::size_t end = std::min(inputs.size(), next + arguments.options.batch_size);
  for (; next < end && !is_array(next) && !has_lines(next); ++next) {
    const InputArgument& input = inputs[next];
    std::error_code ignored;
    if (images && input.pair) throw InputError("--pair is for texts, but this model reads images; leave it out");
    if (!images && std::filesystem::is_directory(input.value, ignored))
      throw InputError(cut(input.value) + " is a folder; expected a text, or --input FILE with one text per line");
    if (!images && std::filesystem::exists(input.value, ignored))
      throw InputError(cut(input.value) + " is a file; to predict its lines, use --input " + input.value);
    if (images) {
      files.emplace_back(input.value);
    } else {
      texts.push_back({input.value, input.pair});
    }
  }
  if (!images) return results.take(predict_texts(predictor, texts, results.count()));
  std::vector<OrderedJson> names;
  for (const std::filesystem::path& file : files) names.emplace_back(file.string());
  results.take({predictor.predict_images(files, results.count()), names});
}

void predict(const Predictor& predictor, const Arguments& arguments) {
  Results results(predictor, arguments);
  for (std::size_t next = 0; next < arguments.inputs.size();) predict_next(predictor, arguments, next, results);
  if (results.count() == 0) {
    std::vector<std::string> names;
    for (const InputArgument& input : arguments.inputs) names.push_back(input.value);
    throw InputError(join(names) + " holds no rows; expected at least one input");
  }
  if (!arguments.json) return;
  std::cout << to_line({{"backend", predictor.backend()},
                        {"fallbacks", skipped_json(predictor)},
                        {"count", results.count()},
                        {"predictions", results.all()}});
}

void list_backends(const Arguments& arguments) {
  OrderedJson all = OrderedJson::array();
  for (const std::string& name : backend_names()) {
    const auto why = why_unavailable(name, arguments.options);
    all.push_back({{"backend", name}, {"available", !why}, {"reason", why ? OrderedJson(*why) : OrderedJson()}});
    if (!arguments.json)
      std::cout << name << std::string(22 - name.size(), ' ') << (why ? "no: " + *why : "yes") << '\n';
  }
  if (arguments.json) std::cout << to_line({{"onnxruntime", onnxruntime_version()}, {"backends", all}});
}

// Returns large freed blocks to the system, which the GNU C library would keep after loading a graph.
void return_large_blocks() {
#ifdef __GLIBC__
  constexpr int kBytes = 1 << 19;
  mallopt(M_MMAP_THRESHOLD, kBytes);  // NOLINT(concurrency-mt-unsafe): no threads yet
#endif
}

void run(const Arguments& arguments) {
  if (arguments.help) {
    std::cout << help_text();
  } else if (arguments.version) {
    std::cout << "hydrant-run " << version() << ", ONNX Runtime " << onnxruntime_version() << '\n';
  } else if (arguments.list_backends) {
    list_backends(arguments);
  } else {
    if (arguments.serve) reserve_signals();
    const Predictor predictor(arguments.bundle, arguments.options);
    if (arguments.verbose) {
      for (const Fallback& each : predictor.fallbacks())
        std::cerr << "skipped " << each.backend << ": " << each.reason << '\n';
      std::cerr << "running on " << predictor.backend() << ", " << predictor.precision() << '\n';
    }
    if (arguments.serve) return serve(predictor, arguments);
    if (!arguments.profile) return predict(predictor, arguments);
    const OrderedJson report = profile(predictor, arguments);
    std::cout << (arguments.json ? to_line(report) : profile_text(report));
  }
}

}  // namespace
}  // namespace hydrant

int main(int count, char** words) {
  hydrant::return_large_blocks();
  std::string problem;
  try {
    hydrant::run(hydrant::parse_arguments({words + std::min(count, 1), words + count}));
    std::cout.flush();
    if (std::cout) return 0;
    problem = hydrant::kUnwritten;
  } catch (const std::bad_alloc&) {
    problem = hydrant::kNoMemory;
  } catch (const std::length_error&) {  // more values than any memory holds
    problem = hydrant::kNoMemory;
  } catch (const std::exception& error) {
    problem = hydrant::one_line(error.what());
  }
  std::cerr << "hydrant-run: error: " << problem << '\n';
  return 2;
}
