# Everything runs in the project's own environment, made from pyproject.toml with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart 0
METHODS ?= all
FIRST := zero_shot,dear,coop,cocoop,prograd,atprompt,tcp,vpt,ivlp,maple,promptsrc
TABLE := --recipe shared --cached-views 10 --jobs 2 --threads 1 --resume
TEACHER := results/teachers/promptsrc-{data}-{shots}shots-seed{seed}
FEWER := --set views=2 --epochs-of tac=5,promptkd=4,textrefiner_promptkd=4 --set teacher='$(TEACHER)' --set lm=results/tiny-lm
ON_FEATURES := zero_shot,linear_probe,clip_adapter,tip_adapter,tip_adapter_f,ape,ape_t,mm_adapter,role_gains,taskres,gda,lppp,clap
IN_TOWERS := dear,coop,mmrlpp,promptsrc,clip_lora,textrefiner,textrefiner_promptkd,mma,llamp
FEW_WORLD := world-textures,world-scenes,world-broad
CHANGED := dear,mmrl,clip_lora,textrefiner,mmrlpp,promptsrc,skiptuning,tip_adapter_f,ape_t,clip_adapter,mm_adapter,clap,taskres,tcp,vpt,provp,prograd,atprompt
ON_PHOTOGRAPHS := zero_shot,tip_adapter,tip_adapter_f,ape,ape_t,clip_adapter,role_gains,gda,dear,mmrl,mmrlpp,textrefiner,clip_lora,coop
OWN_WORLD := world-textures,world-emblems,world-broad
WORLD := world-blooms,world-things,world-places,world-emblems,world-scenes,world-broad,world-textures
SHIFTED := world-broad-v2,world-broad-sketch,world-broad-a,world-broad-r

.PHONY: help install browser options test lint types unit slow ray vectors docs tables masks otherkind language tuned numbers fewshot photographs a11y readme quickstart clean onnxweb
test: lint types unit docs ## what CI runs: style, types, every test that is not slow, the documentation

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.installed ## make the environment in .venv, with the tested versions
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

browser: ## install chromium if it is missing, for the tests that look at pages
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then apt-get update && apt-get install --yes chromium; \
	else echo "Install chromium (on Debian: sudo apt-get install chromium): some tests look at pages in it."; fi

lint: install ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## types
	$(BIN)/mypy

unit: install ## every test that is not slow
	$(PYTEST) -m "not slow and not ray"

slow: install ## the slow tests: full size, the real sentence model, the world's scores, a clean install
	$(PYTEST) -m slow

ray: install ## grids on two nodes of Ray on loopback, in a network of their own if that is permitted
	$(BIN)/python tests/own_network.py $(BIN)/python -m pytest -m ray tests/cluster

vectors: install ## compare every method with numbers of its published code; FOLDER=DIR for other vectors
	cd tests && ../$(BIN)/python -m vectors $(if $(FOLDER),$(abspath $(FOLDER)))

options: install ## write the types of keywords in src/dear/options/keywords.py from the classes of options
	$(BIN)/python -m dear.options.write_keywords
	$(BIN)/ruff format --quiet src/dear/options/keywords.py

docs: install ## build the documentation into site/
	$(BIN)/mkdocs build --strict

a11y: install ## check every kind of page, and the app, with axe-core in chromium (fetched by npm into build/); SHOTS=DIR keeps pictures
	npm install --silent --no-save --no-package-lock --prefix build/a11y axe-core@4
	$(BIN)/python tests/a11y.py build/a11y/node_modules/axe-core/axe.min.js "$(SHOTS)"
	$(BIN)/python tests/app_a11y.py build/a11y/node_modules/axe-core/axe.min.js

onnxweb: install ## check the example page of an ONNX export in chromium (onnxruntime-web is fetched by npm into build/)
	npm install --silent --no-save --no-package-lock --prefix build/onnxweb onnxruntime-web@1
	$(BIN)/python tests/onnx_browser.py build/onnxweb/node_modules/onnxruntime-web/dist "$(SHOTS)"

readme: install ## make the README's picture and numbers again
	$(BIN)/python benchmarks/readme_figures.py

tables: install ## the small form of the tables on the embedded world, into results/; computes only what is missing there
	$(BIN)/dear compare --clip world --data $(WORLD) --methods $(METHODS) --seeds 1,2,3 $(TABLE) \
	  $(if $(filter all,$(METHODS)),$(FEWER)) --out results/world
	$(BIN)/dear compare --clip world --data $(OWN_WORLD) --methods $(FIRST) --seeds 1 $(TABLE) --recipe own --out results/own

masks: install ## DeAR on the world's shifted sets, and with other masks on the seven sets, seed 1, into results/
	$(BIN)/dear compare --clip world --data $(SHIFTED) --methods zero_shot,dear --seeds 1,2,3 $(TABLE) --out results/masks
	$(BIN)/dear compare --clip world --data $(WORLD) --methods dear --set mask=shuffled,all_mixed,all_generalization --seeds 1 $(TABLE) \
	  --out results/masks

otherkind: install ## DeAR with its roles and without on the world's CLIP of the other kind, into results/
	$(BIN)/dear compare --clip world-siglip --data $(WORLD) --methods zero_shot,dear --seeds 1,2,3 $(TABLE) --out results/world-siglip
	$(BIN)/dear compare --clip world-siglip --data $(WORLD) --methods dear --set mask=all_mixed --seeds 1,2,3 $(TABLE) --out results/world-siglip

tuned: install ## the recipe tuned on the world, for methods that it changes; on photographs too if CLIP, DATA and ROLES are set, into results/
	$(BIN)/dear compare --clip world --data $(WORLD) --methods $(CHANGED) --seeds 1,2,3 $(TABLE) --recipe tuned --out results/world-tuned
	$(if $(CLIP),$(BIN)/dear compare --clip $(CLIP) --data-root $(DATA) --data caltech101 --roles $(ROLES) --methods $(ON_PHOTOGRAPHS) \
	  --seeds 1,2,3 $(TABLE) --recipe tuned --out results/photographs-tuned)

language: install ## LLaMP with a language model, a random one and none: LM=FOLDER; on photographs too if CLIP and DATA are set, into results/
	$(BIN)/dear compare --clip world --data $(FEW_WORLD) --methods zero_shot,llamp --set lm=$(LM),results/tiny-lm,none --seeds 1,2,3 $(TABLE) \
	  --out results/language
	$(if $(CLIP),$(BIN)/dear compare --clip $(CLIP) --data-root $(DATA) --data caltech101 --methods zero_shot,llamp \
	  --set lm=$(LM),results/tiny-lm,none --seeds 1 $(TABLE) --out results/language-photographs)

numbers: install ## write every result in README and docs again, from results/
	$(BIN)/python benchmarks/results_tables.py --write

fewshot: install ## few-shot with 4 and 16 shots on the embedded world, into results/; three seeds on features, one in towers
	$(BIN)/dear compare --protocol few-shot --shots 4,16 --clip world --data $(FEW_WORLD) --methods $(ON_FEATURES),kgcoop --seeds 1,2,3 $(TABLE) \
	  --set neighbours=0 --out results/few-shot
	$(BIN)/dear compare --protocol few-shot --shots 4,16 --clip world --data $(FEW_WORLD) --methods $(ON_FEATURES),kgcoop,$(IN_TOWERS) --seeds 1 $(TABLE) \
	  --set neighbours=0 --epochs-of textrefiner_promptkd=4 --set teacher='$(subst teachers,teachers/few-shot,$(TEACHER))' --set lm=results/tiny-lm --out results/few-shot

photographs: install ## the same on photographs: CLIP=NAME, DATA=FOLDER with caltech-101, ROLES=MAP
	$(BIN)/dear compare --clip $(CLIP) --data-root $(DATA) --data caltech101 --roles $(ROLES) --methods $(METHODS) --seeds 1 \
	  $(TABLE) $(if $(filter all,$(METHODS)),$(subst teachers,photographs/runs,$(FEWER))) --out results/photographs

quickstart: install ## adapt the embedded CLIP to a small data set and write a report
	$(BIN)/dear quickstart

clean: ## remove the environment and what was built
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
