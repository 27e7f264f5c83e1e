// hydrant-run: predicts with a bundle, without Python. Exit status 2 and one line on standard error for bad input.
#include <cstdlib>  // before the next line: it defines __GLIBC__
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <exception>
#include <iostream>
#include <stdexcept>

#include "../src/messages.h"
#include "arguments.h"
#include "profile.h"
#include "rows.h"
#include "serve.h"

namespace hydrant {
namespace {

// A file's predictions and what to call each of its inputs.
struct Predicted {
  Prediction prediction;
  std::vector<OrderedJson> names;
};

bool has_arrays(const std::string& file) {
  const std::string ending = std::filesystem::path(file).extension().string();
  return ending == ".npy" || ending == ".npz";
}

Prediction predict_array(const Predictor& predictor, const Tensor& tensor, std::size_t first) {
  const bool pictures = std::holds_alternative<std::vector<std::uint8_t>>(tensor.data) && predictor.reads_images();
  return pictures ? predictor.predict_images(tensor, first) : predictor.predict(tensor);
}

Predicted predict_arrays(const Predictor& predictor, const std::string& file, std::size_t first) {
  const Tensors tensors = read_tensors(file);
  const auto single = tensors.count("") > 0 ? tensors.find("") : tensors.find("x");  // x: labelled examples
  Predicted found;
  try {
    found.prediction =
        single == tensors.end() ? predictor.predict(tensors) : predict_array(predictor, single->second, first);
  } catch (const InputError& error) {
    throw InputError(file + ": " + error.what());
  }
  for (std::size_t i = 0; i < found.prediction.size(); ++i) found.names.push_back(file + ", row " + std::to_string(i));
  return found;
}

// Predicts what comes next: one file of arrays, or as many picture files as a batch holds.
Predicted predict_next(const Predictor& predictor, const Arguments& arguments, std::size_t& next, std::size_t first) {
  const std::vector<std::string>& inputs = arguments.inputs;
  if (has_arrays(inputs[next])) return predict_arrays(predictor, inputs[next++], first);
  std::vector<std::string> names;
  while (next < inputs.size() && !has_arrays(inputs[next]) && names.size() < arguments.options.batch_size)
    names.push_back(inputs[next++]);
  return {predictor.predict_images(std::vector<std::filesystem::path>(names.begin(), names.end()), first),
          {names.begin(), names.end()}};
}

void predict(const Predictor& predictor, const Arguments& arguments) {
  OrderedJson all = OrderedJson::array();
  std::size_t count = 0;
  for (std::size_t next = 0; next < arguments.inputs.size();) {
    const Predicted found = predict_next(predictor, arguments, next, count);
    for (OrderedJson& row : prediction_rows(predictor, found.prediction, found.names, count, arguments.probabilities)) {
      if (arguments.json) {
        all.push_back(std::move(row));
      } else {
        std::cout << to_line(row);
      }
    }
    count += found.prediction.size();
    std::cout.flush();
  }
  if (count == 0) throw InputError(join(arguments.inputs) + " holds no rows; expected at least one input");
  if (!arguments.json) return;
  std::cout << to_line({{"backend", predictor.backend()},
                        {"fallbacks", skipped_json(predictor)},
                        {"count", count},
                        {"predictions", all}});
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

// Gives large blocks back to the system when they are freed. Otherwise the GNU C library raises its limit while ONNX
// Runtime reads a graph, and keeps what that took: half as much again as the weights.
void return_large_blocks() {
#ifdef __GLIBC__
  constexpr int kBytes = 1 << 19;
  mallopt(M_MMAP_THRESHOLD, kBytes);
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
    if (arguments.serve) keep_signals();
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
    problem = "cannot write to standard output; is the disk full?";
  } catch (const std::bad_alloc&) {
    problem = "there is not enough memory for these inputs; give fewer at once";
  } catch (const std::length_error&) {  // more values than any memory holds
    problem = "there is not enough memory for these inputs; give fewer at once";
  } catch (const std::exception& error) {
    problem = hydrant::one_line(error.what());
  }
  std::cerr << "hydrant-run: error: " << problem << '\n';
  return 2;
}
