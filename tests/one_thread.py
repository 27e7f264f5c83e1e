"""Sessions of one thread: tiny models gain nothing from more, which take time to start and turn while they wait."""

import importlib.util
from typing import Any

import onnxruntime


class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Settings of a session of ONNX Runtime, of one thread until another number is set."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def use_one_thread() -> None:
    """From now on in this process; whoever asks for a number of threads gets it."""
    begin = onnxruntime.InferenceSession.__init__

    def started(self: Any, model: Any, sess_options: Any = None, *more: Any, **named: Any) -> None:
        begin(self, model, sess_options or Options(), *more, **named)

    onnxruntime.SessionOptions = Options
    onnxruntime.InferenceSession.__init__ = started
    if importlib.util.find_spec("openvino"):
        _of_openvino()


def _of_openvino() -> None:
    import openvino

    begin = openvino.Core.__init__

    def started(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.set_property("CPU", {"INFERENCE_NUM_THREADS": 1})

    openvino.Core.__init__ = started
