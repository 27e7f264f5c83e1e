"""A bundle as an MLflow model: this file is the model, and the program that logs and loads it."""

import sys
from typing import Any

import hydrant
import mlflow
import pandas as pd


class UncertainClassifier(mlflow.pyfunc.PythonModel):
    """Predicts a table with a column ``text`` or ``image``."""

    def load_context(self, context: Any) -> None:
        """Load the bundle of the model's artifacts."""
        self.predictor = hydrant.load(context.artifacts["bundle"])

    def predict(self, model_input: pd.DataFrame) -> pd.DataFrame:
        """Label, uncertainties and decisions of each row."""
        rows = self.predictor.rows(self.predictor.predict(model_input))
        return pd.DataFrame(rows, index=model_input.index).drop(columns="index")


mlflow.models.set_model(UncertainClassifier())

if __name__ == "__main__":
    bundle, *texts = sys.argv[1:]
    table = pd.DataFrame({"text": texts})
    with mlflow.start_run():
        logged = mlflow.pyfunc.log_model(
            name="classifier",
            python_model=__file__,
            artifacts={"bundle": bundle},
            input_example=table,
            pip_requirements=[f"hydrant-uq[onnxruntime]=={hydrant.__version__}", "pandas"],
        )
    predicted = mlflow.pyfunc.load_model(logged.model_uri).predict(table)
    predicted.to_json(sys.stdout, orient="records", lines=True)
