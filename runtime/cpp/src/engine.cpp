#include "engine.h"

#include <mutex>

#include "engine_lane.h"
#include "library.h"

namespace hydrant {
namespace {

// Concurrent threads each use their own lane.
class EngineBackend : public Backend {
 public:
  EngineBackend(const Chosen& chosen, const TensorRt& library, const std::string& data, std::int64_t padding_token)
      : Backend(chosen.facts.library, chosen.facts.precision),
        profiles_(chosen.facts.profiles, chosen.rebuild),
        padding_token_(padding_token),
        cuda_(Cuda::open()),
        engine_(loaded(library, data, chosen)) {}

  ~EngineBackend() override {
    idle_.clear();
    const OnFirstGpu here(cuda_);
    engine_.reset();
  }

  std::optional<std::size_t> longest() const override { return profiles_.longest(); }

  std::vector<std::string> outputs() const override {
    std::vector<std::string> names;
    for (const auto& [name, shape] : engine_->outputs()) names.push_back(name);
    return names;
  }

  std::size_t chunk(std::size_t batch, std::size_t tokens) const override { return profiles_.largest(batch, tokens); }

  Outputs run(const Views& inputs) const override {
    profiles_.check(inputs, engine_->inputs());
    const std::vector<Part> parts = profiles_.parts(batch_of(inputs), tokens_of(inputs));
    const OnFirstGpu here(cuda_);
    std::unique_ptr<Lane> lane = taken();  // discarded after a failure
    Outputs joined;
    for (const Part& part : parts) extend(joined, lane->run(inputs, part, padding_token_));
    const std::lock_guard<std::mutex> held(lock_);
    idle_.push_back(std::move(lane));
    return joined;
  }

 private:
  std::unique_ptr<const Engine> loaded(const TensorRt& library, const std::string& data, const Chosen& chosen) const {
    const OnFirstGpu here(cuda_);
    return std::make_unique<const Engine>(library, data, chosen);
  }

  std::unique_ptr<Lane> taken() const {
    {
      const std::lock_guard<std::mutex> held(lock_);
      if (!idle_.empty()) {
        std::unique_ptr<Lane> lane = std::move(idle_.back());
        idle_.pop_back();
        return lane;
      }
    }
    return std::make_unique<Lane>(cuda_, *engine_, profiles_);
  }

  Profiles profiles_;
  std::int64_t padding_token_;
  Cuda cuda_;
  std::unique_ptr<const Engine> engine_;
  mutable std::mutex lock_;
  mutable std::vector<std::unique_ptr<Lane>> idle_;
};

}  // namespace

bool built_for(const std::string& library) { return TensorRt::file_of(library).has_value(); }

std::optional<std::string> why_no_engines(const std::string& library) {
  if (!built_for(library)) {
    return "this libhydrant was built with the headers of " + TensorRt::headers() + ", which do not describe " +
           library + "; build it with those of TensorRT 11, or use `hydrant predict`";
  }
  try {
    const TensorRt there(library);
    return std::nullopt;
  } catch (const BackendError& error) {
    return error.what();
  }
}

std::unique_ptr<const Backend> open_engine(const Bundle& bundle, const Architecture& architecture,
                                           const std::string& library, const Options& options) {
  if (const auto why = why_no_engines(library)) throw BackendError("backend " + library + " cannot run here: " + *why);
  const TensorRt native(library);
  const auto gpu = this_gpu();
  const Chosen chosen = choose_engine(bundle, {library, native.version(), gpu, false}, options.precision);
  const std::string data = read_engine(bundle, chosen);
  if (!gpu) throw BackendError("backend " + library + " cannot run here: " + *why_unavailable(library, options));
  return std::make_unique<EngineBackend>(chosen, native, data, architecture.padding_token);
}

}  // namespace hydrant
