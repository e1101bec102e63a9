"""Marks in config.json by which other libraries tell a ticket from a plain model."""

TICKET = "hf_px"  # quant_method: makes transformers call hf_px
# After the architecture, where there is no dense copy. timm, given local-dir:, takes any .safetensors file, and with
# another num_classes it does not mind that no name in it fits. So it must not know the model, and shows this instead.
NOT_FOR_TIMM = ", packed: read it with hf_px.from_pretrained"
