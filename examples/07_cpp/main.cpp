// Predict the tensors of a .npz file with a bundle, without Python.
#include <hydrant/hydrant.h>

#include <cstdlib>
#include <iostream>

int main(int count, char** arguments) {
  if (count != 3) {
    std::cerr << "usage: predict BUNDLE x.npz\n";
    return EXIT_FAILURE;
  }
  try {
    const hydrant::Predictor predictor(arguments[1]);
    const hydrant::Prediction p = predictor.predict(hydrant::read_tensors(arguments[2]));
    for (std::size_t row = 0; row < p.label.size(); ++row) {
      std::cout << predictor.labels()[static_cast<std::size_t>(p.label[row])] << '\t' << p.confidence[row]
                << '\t' << p.mutual_information[row] << '\n';
    }
  } catch (const hydrant::Error& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
