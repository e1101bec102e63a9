"""A ticket for other runtimes: ONNX, OpenVINO and torch.export files, each compared with the ticket before it is kept.

May import tickets and what lies below it. The runtimes are imported when they are used, from the extra hf-px[export].
"""
