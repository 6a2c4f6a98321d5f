# Each target installs what it needs itself. What runs a kernel runs it in the guest (test/guest/run): nothing is mounted here.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build image images push manifests fmt lint proto unit integration integration-newer integration-ganesha sanity chart \
	test-images setup-kubernetes test-kubernetes test-kubernetes-ipv6 test-release test demo demo-picture bench compare release-prepare \
	release clean

# What is built for: the machine's own kind, or the other one (make image ARCH=arm64).
HOST := $(shell rustc -vV | sed -n 's/^host: //p')
ARCH := $(patsubst aarch64,arm64,$(patsubst x86_64,amd64,$(firstword $(subst -, ,$(HOST)))))
TARGET := $(patsubst arm64,aarch64,$(patsubst amd64,x86_64,$(ARCH)))-unknown-linux-gnu
ifneq ($(TARGET),$(HOST))
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER := x86_64-linux-gnu-gcc
endif
DRIVER := $(CURDIR)/target/$(TARGET)/release/nfs-csi
# The image's name (make push IMAGE=REGISTRY/nfs-csi) and the archive of it.
IMAGE := localhost/nfs-csi
ARCHIVE := $(CURDIR)/target/image/nfs-csi-$(ARCH).tar
OUT := $(CURDIR)/target/test
# Shell scripts that stand alone (SC2317 takes the function of a trap for unreachable).
SCRIPTS := deploy/*.sh deploy/make image/build image/push test/setup test/part test/guest/run test/guest/kernel \
	test/integration/run test/sanity/run test/demo/run test/proto/check test/bench/with-ganesha \
	test/kubernetes/run test/kubernetes/programs/build
SCRIPTS += release/versions release/prepare release/check release/make release/pack release/krew release/tar release/inventory \
	test/workflows/check
# Another kernel for the guest than this machine's user-mode-linux, by version (make integration KERNEL=6.12). And the one
# that is tested on every time, with the tests that ask most of a kernel: about half of them.
KERNEL :=
NEWER := 6.12
ASKING := several:: dead_servers:: inline:: publishing:: tree_faults:: dead_controllers:: cloning:: reaching:: snapshots:: access_lists::
# The NFS server in the guest: the kernel's, or nfs-ganesha (make integration SERVER=ganesha).
SERVER :=
# The version of a release (make release VERSION=1.2.3).
VERSION :=
# The only kind of address in the cluster of the tests: ipv4 or ipv6.
FAMILY := ipv4
# The largest binary that is allowed, in bytes.
LARGEST := 12000000
export E2E_DRIVER := $(DRIVER)
export E2E_SANITY := $(OUT)/csi-sanity
# Each worker process reads the table of relocations: packed, it takes 4 KiB of its memory and not 260. (GNU's linker packs it for
# x86 only; the C library applies it from 2.36 on.)
comma := ,
LINKED := -C target-feature=+crt-static$(if $(filter x86_64%,$(TARGET)), -C link-arg=-Wl$(comma)-z$(comma)pack-relative-relocs)
# The path of a target's program, from cargo's own messages.
program = $$(cargo $(1) --locked --message-format=json 2> >(cat >&2) | test/program $(2))

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 26

build: ## One static binary (ARCH=arm64)
	@$(if $(filter $(TARGET),$(HOST)),,test/setup $(ARCH))
	RUSTFLAGS='$(LINKED)' cargo build --release --locked --target $(TARGET)
	@size=$$(stat -c %s $(DRIVER)); echo "$(DRIVER): $$size bytes"; \
		[ "$$size" -le $(LARGEST) ] || { echo "larger than $(LARGEST) bytes" >&2; exit 1; }
	@if grep -q '=>' <<< "$$(ldd $(DRIVER) 2>&1)"; then echo "$(DRIVER) is not static" >&2; exit 1; fi

image: build ## A container image with nothing but the binary, and its archive (ARCH=arm64, IMAGE=name)
	image/build $(DRIVER) $(ARCH) $(IMAGE) $(ARCHIVE)

images: ## Images for both architectures
	@for arch in amd64 arm64; do $(MAKE) --no-print-directory image ARCH=$$arch; done

push: images ## Both images under one name (IMAGE=REGISTRY/nfs-csi)
	image/push $(IMAGE) $(foreach arch,amd64 arm64,$(CURDIR)/target/image/nfs-csi-$(arch).tar)

fmt: ## Format the code
	cargo fmt

lint: ## Format and clippy, warnings are errors
	@test/setup lint go
	test/part lint bash -euc 'cargo fmt --check; cargo clippy --all-targets --locked -- -D warnings; shellcheck --exclude SC2317 $(SCRIPTS); test/demo/check; test/workflows/check'

proto: ## The protocol file against the published descriptors
	@test/setup go
	test/part proto test/proto/check

unit: ## Unit and property tests
	test/part unit cargo test --lib --locked

integration: build ## Integration tests in the guest (FILTER=part of a name, KERNEL=6.12, SERVER=ganesha)
	@test/setup guest $(SERVER) $(if $(KERNEL),kernel && test/guest/kernel $(KERNEL))
	E2E_SERVER=$(SERVER) E2E_TESTS=$(call program,test --test integration --no-run,integration) \
		test/part integration$(SERVER:%=-%)$(KERNEL:%=-%) test/integration/run $(FILTER)

integration-newer: ## Those that ask most of a kernel on a newer one
	@$(MAKE) --no-print-directory integration KERNEL=$(NEWER) FILTER='$(ASKING)'

integration-ganesha: build ## Those of the controller on nfs-ganesha, but for the longest, in one guest
	@test/setup guest ganesha
	E2E_SERVER=ganesha E2E_SHORT=1 E2E_TESTS=$(call program,test --test integration --no-run,integration) MEM=3G TIMEOUT=2400 \
		test/part integration-ganesha test/guest/run test/integration/job

sanity: build ## csi-sanity in the guest
	@test/setup guest go
	cd test/sanity && CGO_ENABLED=0 go build -o $(E2E_SANITY) github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity
	test/part sanity test/sanity/run $(OUT)/sanity

chart: build ## The Helm chart, its alerts and its dashboard, and the plain manifests that are made from it
	@test/setup go chart
	test/part chart env PATH="$$(test/kubernetes/programs/build):$$PATH" bash -euc 'test/chart/check; test/chart/scripts'

manifests: ## deploy/*.yaml, made from the chart
	@test/setup go
	PATH="$$(test/kubernetes/programs/build):$$PATH" deploy/make deploy

test-images: build ## The images: built without what tests need, from a clean checkout, and pushed
	@test/setup buildah go
	test/part images test/images/check $(DRIVER) $(OUT)/images

setup-kubernetes:
	@test/setup guest go kubernetes image

test-kubernetes: setup-kubernetes image ## Tests on a Kubernetes in the guest (FILTER=part of a name, FAMILY=ipv6)
	E2E_FAMILY=$(FAMILY) test/part kubernetes$(if $(filter ipv6,$(FAMILY)),-ipv6) \
		test/kubernetes/run $(ARCHIVE) $(OUT)/kubernetes-$(FAMILY) $(FILTER)

test-kubernetes-ipv6: ## A few of them where there are IPv6 addresses only
	@$(MAKE) --no-print-directory test-kubernetes FAMILY=ipv6 FILTER=helm_install_with,both_parts_answer,a_claim_is_written

test-release: ## How a release is made: what is refused, and that it has the same bytes each time
	@test/setup go chart
	test/part release env PATH="$$(test/kubernetes/programs/build):$$PATH" test/release/check

# A guest has one processor: that of the cluster and that of nfs-ganesha are at work at the same time.
test: ## All tests
	@rm -rf $(OUT)/status; for part in lint proto unit integration integration-newer sanity chart test-release test-images; do $(MAKE) --no-print-directory $$part || true; done
	@test/setup guest ganesha go kubernetes image || true
	@$(MAKE) --no-print-directory integration-ganesha > $(OUT)/beside.log 2>&1 & for part in test-kubernetes test-kubernetes-ipv6; do $(MAKE) --no-print-directory $$part || true; done; wait; cat $(OUT)/beside.log
	@test/summary $(OUT)

demo: build ## A volume's life on a real NFS server, step by step
	@test/setup guest
	E2E_DEMO=$(call program,build --example demo,demo) test/demo/run

demo-picture: build ## docs/pictures/demo.svg, drawn from what the demo prints
	@test/setup guest
	mkdir -p $(OUT)
	E2E_DEMO=$(call program,build --example demo,demo) test/demo/run always > $(OUT)/demo.txt
	test/demo/picture $(OUT)/demo.txt docs/pictures/demo.svg

bench: build ## What the driver costs against the bare system calls (ONLY=start, publish, dead, volumes, quotas, map, lists, list, readers, file, files, servers, crews, links, names or million)
	@test/setup guest ganesha
	mkdir -p $(OUT)/bench
	bench=$(call program,bench --bench bench --no-run,bench); "$$bench" outside $(ONLY); \
		E2E_BENCH=$$bench OUT=$(OUT)/bench MEM=6G TIMEOUT=3000 test/bench/with-ganesha $(OUT)/bench test/guest/run test/bench/job $(ONLY)
	cp $(OUT)/bench/bench.json target/bench.json

compare: $(if $(PEER),build) ## The same work by this driver and csi-driver-nfs, as a table (PEER=path/to/nfsplugin, ONLY=parts)
	@[ -x '$(PEER)' ] || { echo 'make compare PEER=path/to/nfsplugin: build or download csi-driver-nfs first; see docs/comparison.md' >&2; exit 2; }
	@test/setup guest
	install -D '$(PEER)' $(OUT)/compare/peer
	E2E_PEER=$(OUT)/compare/peer E2E_COMPARE=$(call program,bench --bench compare --no-run,compare) \
		OUT=$(OUT)/compare MEM=6G TIMEOUT=5000 test/guest/run test/compare/job $(ONLY)
	cp $(OUT)/compare/compare.md target/compare.md

release-prepare: ## Set the version of the next release in all files (VERSION=1.2.3)
	@test/setup go
	@PATH="$$(test/kubernetes/programs/build):$$PATH" release/prepare '$(VERSION)'

release: ## All that a release consists of, in target/release-artifacts; publishes nothing (VERSION=1.2.3)
	@test/setup go image
	@PATH="$$(test/kubernetes/programs/build):$$PATH" release/make '$(VERSION)' 'target/release-artifacts/v$(VERSION)'

clean: ## Remove all that was built
	cargo clean
