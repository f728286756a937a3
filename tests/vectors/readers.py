"""The reader of each method's files, and the mistakes that a comparison with a file must notice.

Readers are in modules by kind of method:
  prompt_words     CoOp, KgCoOp, CoCoOp, ProGrad, ATPrompt, TCP
  layer_prompts    MaPLe, VPT, IVLP, PromptSRC, ProVP, SkipTuning
  token_methods    MMRL, MMRL++, TAC, PromptKD
  feature_methods  CLIP-Adapter, Tip-Adapter(-F), APE(-T), Multi-Modal Adapter, linear probe
  class_probes     TaskRes, GDA, LP++, CLAP
  tower_adapters   CLIP-LoRA, MMA, TextRefiner, LLaMP
"""

from vectors import class_probes, feature_methods, layer_prompts, prompt_words, token_methods, tower_adapters

MODULES = (prompt_words, layer_prompts, token_methods, feature_methods, class_probes, tower_adapters)
READERS = {name: reader for module in MODULES for name, reader in module.READERS.items()}
SPOILT = {stem: mistakes for module in MODULES for stem, mistakes in module.SPOILT.items()}


def reader_of(facts):
    """The reader of a file, or None if its method is unknown."""
    return READERS.get(facts["name"])
