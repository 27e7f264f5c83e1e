// Engines on a substitute for TensorRT (standin/) match the graphs, and failures are reported. Nothing runs on a GPU.
#include <dlfcn.h>

#include <iostream>

#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

constexpr int kRuns = 25;  // per thread

// Unreleased objects and memory of the substitute.
int live() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  check(library != nullptr, "the substitute is missing");
  const auto count = reinterpret_cast<int (*)()>(dlsym(library, "standin_live"));
  check(count != nullptr, "libcuda.so.1 is not the substitute");
  return count();
}

Options on(const std::string& backend, std::size_t batch_size = 32) {
  Options options = one_thread();
  options.backend = backend;
  options.batch_size = batch_size;
  return options;
}

// A golden case with one of its engines instead of the graph.
Case with_engine(const fs::path& folder, const std::string& name) {
  Case golden(folder);
  golden.name += ", engine " + name;
  golden.bundle = folder / "engines" / name;
  return golden;
}

// Every batch size: padded, whole and split.
void same_as_the_graph(const fs::path& folder) {
  for (const Case& golden : {with_engine(folder / "bert", "fits"), with_engine(folder / "bert", "small"),
                             with_engine(folder / "bert", "padded"), with_engine(folder / "roberta", "fits"),
                             with_engine(folder / "vit", "fits")}) {
    for (const std::size_t batch_size : {1U, 2U, 3U, 5U, 6U, 7U, 32U, 70U}) {
      const Predictor predictor(golden.bundle, on("tensorrt", batch_size));
      check(predictor.backend() == "tensorrt" && predictor.precision() == "fp32", "another backend runs");
      compare(predict(predictor, golden), golden);
    }
    check(live() == 0, golden.name, ": ", live(), " objects were not given back");
    std::cout << golden.name << ": as the graph\n";
  }
  const Predictor predictor(folder / "bert" / "engines" / "fits", on("tensorrt"));
  check(predictor.longest() == 24, "the longest text has ", predictor.longest(), " tokens; expected 24");
  check(predictor.chunk(32, 9) == 6 && predictor.chunk(32, 24) == 6 && predictor.chunk(2, 9) == 2, "another chunk");
}

void share(const fs::path& folder) {
  const Case golden = with_engine(folder / "bert", "fits");
  {
    const Predictor predictor(golden.bundle, on("tensorrt"));
    compare_at_once(predictor, {golden}, kThreads, kRuns);
  }
  check(live() == 0, live(), " objects were not given back");
  std::cout << kThreads << " threads share an engine\n";
}

// Opening or running the engine fails with `words`, and releases everything.
void refused(const fs::path& folder, const std::string& name, const std::string& words,
             const std::string& backend = "tensorrt", std::optional<std::string> precision = {}) {
  const Case golden = with_engine(folder / "bert", name);
  std::string message;
  try {
    Options options = on(backend);
    options.precision = std::move(precision);
    const Predictor predictor(golden.bundle, options);
    for (int again = 0; again < 2; ++again) {
      try {
        predict(predictor, golden);
      } catch (const BackendError& error) {
        message = error.what();
      }
    }
  } catch (const Error& error) {
    message = error.what();
  }
  check(message.find(words) != std::string::npos, golden.name, " says '", message, "'; expected ", words);
  check(live() == 0, golden.name, ": ", live(), " objects were not given back");
}

void refusals(const fs::path& folder) {
  refused(folder, "fault run", "the engine failed to run: 'kernel 7 was lost'");
  refused(folder, "fault context", "tensorrt gave no execution context: 'no room for a context'; use fewer threads");
  refused(folder, "fault profile", "the engine refuses profile 1: 'no reason given'");
  refused(folder, "fault address", "the engine refuses memory for");
  refused(folder, "fault type", "' as INT32 [-1, -1]; expected INT64 or FLOAT; rebuild it with `hydrant build");
  refused(folder, "fault memory", "CUDA failed in cudaHostAlloc: 'out of memory'; use smaller batches");
  refused(folder, "unlike", "has the optimization profiles 'attention_mask [4, 4][4, 8][4, 12], input_ids");
  refused(folder, "magic", "tensorrt 11.1.0.106 cannot load engine tensorrt-fp32: 'magic tag failed'; rebuild it with");
  refused(folder, "stripped", "engine tensorrt-fp32 holds no weights, and this library cannot put them in");
  refused(folder, "digest", "is not what engines/tensorrt-fp32.json describes");
  refused(folder, "none", "has no tensorrt engine; build one with `hydrant build");
  refused(folder, "fits", "has no tensorrt engine in fp16", "tensorrt", "fp16");
  refused(folder, "fits", "backend tensorrt does not run precision 'int8'; expected fp16, bf16, fp32", "tensorrt",
          "int8");
  refused(folder, "fits", "has no tensorrt-rtx engine; build one with", "tensorrt-rtx");
  refused(folder, "both", "compiled for compute capability 7.5 and this GPU has 8.9", "tensorrt-rtx");
}

// Too long texts are the caller's error, without a path in the message.
void too_long(const fs::path& folder) {
  const Predictor predictor(folder / "bert" / "engines" / "small", on("tensorrt"));
  check(predictor.longest() == 12, "the longest text has ", predictor.longest(), " tokens");
  const Tensor ids{{1, 13}, std::vector<std::int64_t>(13, 7)}, ones{{1, 13}, std::vector<std::int64_t>(13, 1)};
  refuse<InputError>("input_ids has 13 tokens; this bundle's tensorrt engine takes at most 12",
                     [&] { predictor.predict({{"input_ids", ids}, {"attention_mask", ones}}); });
}

// "auto" selects a suitable engine, and reports why it skips others.
void chain(const fs::path& folder) {
  const Predictor fits(folder / "bert" / "engines" / "fits", on("auto"));
  check(fits.backend() == "tensorrt" && fits.fallbacks().empty(), "auto took ", fits.backend());
  const Case golden = with_engine(folder / "bert", "gpu");
  const Predictor skipped(golden.bundle, on("auto"));
  check(skipped.backend() == "onnxruntime" && skipped.fallbacks().size() == 4, "auto took ", skipped.backend());
  const std::string why = skipped.fallbacks()[0].reason;
  check(why.find("engine tensorrt-fp32 was compiled for compute capability 8.6, 12.0 and") == 0, why);
  compare(predict(skipped, golden), golden);
  for (const char* backend : {"tensorrt", "tensorrt-rtx"})
    check(!why_unavailable(backend), backend, " is not available: ", why_unavailable(backend).value_or(""));
}

}  // namespace

void engines(const fs::path& folder) {
  same_as_the_graph(folder);
  refusals(folder);
  too_long(folder);
  chain(folder);
  share(folder);
}

}  // namespace hydrant::tests
