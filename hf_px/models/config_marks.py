"""Marks in config.json: what tells other libraries that a model is a ticket, and of which library it is."""

OF_TORCHVISION = "torchvision_"  # architectures of torchvision begin so in timm's registry, where hf_px adds them
TICKET = "hf_px"  # quant_method in quantization_config: makes transformers call hf_px
WIDTHS = "hf_px_widths"  # what shrink left of each tensor
# Suffix of the architecture if there is no dense copy. timm, given local-dir:, loads any .safetensors file, and with
# another num_classes it ignores that no name fits. With this suffix it does not find the architecture, and its error
# shows the suffix.
NOT_FOR_TIMM = ", packed: read it with hf_px.from_pretrained"
