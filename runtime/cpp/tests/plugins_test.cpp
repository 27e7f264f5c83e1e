// A plug-in is registered once for all sessions and threads.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <thread>

#include "../src/library.h"
#include "../src/session.h"
#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

void once() {
  Plugins plugins;
  std::atomic<int> registered{0};
  const auto add = [&](const fs::path& library) { plugins.add("provider", library, [&] { ++registered; }); };
  refuse<BackendError>("it cannot be loaded", [&] {  // then retried
    plugins.add("provider", "plugin.so", [] { throw BackendError("it cannot be loaded"); });
  });
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kThreads; ++worker) workers.emplace_back([&] { add("plugin.so"); });
  for (std::thread& worker : workers) worker.join();
  check(registered == 1, "the plug-in was registered ", registered.load(), " times");
  refuse<BackendError>("already runs provider from plugin.so; use that plug-in", [&] { add("another.so"); });
}

// ONNX Runtime needs absolute paths; a removed working folder has none.
void whole_paths() {
  const fs::path before = fs::current_path(), gone = before / ("hydrant-gone-" + std::to_string(getpid()));
  check(absolute_path("plugin.so") == before / "plugin.so", "a relative path does not begin at the working folder");
  fs::create_directory(gone);
  fs::current_path(gone);
  fs::remove(gone);
  refuse<BackendError>("the folder of 'plugin.so' is unknown", [] { absolute_path("plugin.so"); });
  fs::current_path(before);
}

}  // namespace

void plugins(const fs::path&) {
  once();
  whole_paths();
  std::cout << "a plug-in is registered once\n";
}

// Concurrent and consecutive sessions, with a plug-in that counts its registrations.
void plugin_sessions(const fs::path& folder) {
#ifdef HYDRANT_STANDIN_PLUGIN
  const fs::path library = HYDRANT_STANDIN_PLUGIN;
  void* const handle = dlopen(library.c_str(), RTLD_NOW);
  check(handle != nullptr, dlerror());
  const auto registrations = reinterpret_cast<int (*)()>(dlsym(handle, "standin_registrations"));
  const Case golden(folder / "bert");
  const Provider provider{"StandinExecutionProvider", {}, fs::relative(library)};
  const auto open = [&] { return std::make_unique<Session>(golden.bundle / "model.fp32.onnx", provider, 1); };
  for (int round = 0; round < 2; ++round) {
    const auto first = open(), second = open();
    const Outputs one = first->run(views_of(golden.inputs)), other = second->run(views_of(golden.inputs));
    check(one == other && one.count("probabilities") == 1, "the sessions differ");
  }
  check(registrations() == 1, "the plug-in was registered ", registrations(), " times");
  std::cout << "four sessions share a plug-in\n";
#else
  check(false, folder, ": this program was built without the stand-in");
#endif
}

}  // namespace hydrant::tests
