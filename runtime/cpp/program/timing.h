// Timing one case: warm-up, as many repetitions as the rules ask for, percentiles, and signs that it was unstable.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace hydrant {

// How long to measure.
struct Rules {
  double seconds = 3;           // least time of all repetitions together
  std::size_t iterations = 30;  // least number of repetitions
  double warm_up = 0.2;         // least seconds before them
};

// Times in milliseconds.
struct Latency {
  double p50 = 0, p90 = 0, p95 = 0, p99 = 0;  // percentiles, linear between neighbours
  double mean = 0;
  double variation = 0;  // standard deviation ÷ mean
  double drift = 0;      // median of the second half of the repetitions ÷ that of the first, − 1
  std::size_t iterations = 0;
};

// Seconds of every repetition, in the order in which they ran.
std::vector<double> repeat(const std::function<void()>& run, const Rules& rules);

// The figures of one case.
Latency latency_of(const std::vector<double>& seconds);

// Value below which a share of the values lies, linear between neighbours.
double percentile(std::vector<double> values, double share);

// What was unstable about the case of this name, in words.
std::vector<std::string> instabilities(const std::string& name, const Latency& latency);

// A warning when more programs want to run than there are cores.
std::vector<std::string> busy();

}  // namespace hydrant
