{{/* What names and labels end in: nothing for the driver of the common name, the release for any other. */}}
{{- define "nfs-csi.suffix" -}}
{{- if ne .Values.driver.name "nfs.csi.k8s.io" }}-{{ .Release.Name }}{{ end }}
{{- end }}

{{/* The name of a part where it has none of its own. Called with the root and the part. */}}
{{- define "nfs-csi.named" -}}
{{- with (index . 0).Values.fullnameOverride }}{{ . }}-{{ index $ 1 }}{{ else }}csi-nfs-{{ index . 1 }}{{ include "nfs-csi.suffix" (index . 0) }}{{ end }}
{{- end }}

{{- define "nfs-csi.controller" -}}
{{- .Values.controller.name | default (include "nfs-csi.named" (list . "controller")) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nfs-csi.node" -}}
{{- .Values.node.name | default (include "nfs-csi.named" (list . "node")) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The ConfigMap with the server map. */}}
{{- define "nfs-csi.servers" -}}
{{- include "nfs-csi.named" (list . "servers") | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nfs-csi.controllerAccount" -}}
{{- .Values.serviceAccount.controller | default (printf "%s-sa" (include "nfs-csi.controller" .)) }}
{{- end }}

{{- define "nfs-csi.nodeAccount" -}}
{{- .Values.serviceAccount.node | default (printf "%s-sa" (include "nfs-csi.node" .)) }}
{{- end }}

{{/* The node plugin's folder on the host. */}}
{{- define "nfs-csi.pluginDir" -}}
{{- .Values.kubeletDir | trimSuffix "/" }}/plugins/{{ if eq .Values.driver.name "nfs.csi.k8s.io" }}csi-nfsplugin{{ else }}{{ .Values.driver.name }}{{ end }}
{{- end }}

{{- define "nfs-csi.name" -}}
{{- .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* Labels of an object, each once: where a user has a key of the chart's own, the chart's value counts. */}}
{{- define "nfs-csi.labels" -}}
{{- $own := dict "app.kubernetes.io/name" (include "nfs-csi.name" .) "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
{{- merge $own (.Values.customLabels | default dict) | toYaml }}
{{- end }}

{{/* An image's full name. Called with the top and one of the image's values. */}}
{{- define "nfs-csi.image" -}}
{{- $top := index . 0 }}{{ $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- if not $name }}{{ fail "image.nfs.repository is empty: set it to the name under which you pushed this driver's image (make push IMAGE=REGISTRY/nfs-csi), or to localhost/nfs-csi if you loaded its archive into the nodes (make image)" }}{{ end -}}
{{- if hasSuffix "/nfsplugin" $name }}{{ fail (printf "image.nfs.repository=%s is the program of csi-driver-nfs: set image.nfs.repository and image.nfs.tag to an image of this driver" $name) }}{{ end -}}
{{- if hasPrefix "/" $name }}{{ $name = printf "%s%s" (trimSuffix "/" $top.Values.image.baseRepo) $name | trimPrefix "/" }}{{ end -}}
{{ $name }}:{{ $image.tag | default (printf "v%s" $top.Chart.AppVersion) }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Whether external-snapshotter runs beside the controller. */}}
{{- define "nfs-csi.snapshotter" -}}
{{- $wanted := .Values.controller.enableSnapshotter | toString -}}
{{- $known := or (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1") (and .Values.externalSnapshotter.enabled .Values.externalSnapshotter.customResourceDefinitions.enabled) -}}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $known) }}true{{ end }}
{{- end }}

{{- define "nfs-csi.metricsHost" -}}
{{- $address := .Values.metrics.address | default "" }}
{{- if contains ":" $address }}[{{ $address }}]{{ else }}{{ $address }}{{ end }}
{{- end }}

{{/* Where the controller runs: on different nodes if there are several, and on the control plane's only where that is
     asked for. Distributions give the label of these nodes different values, so that it exists is enough; each term of a
     given affinity is one of several that are enough alone. */}}
{{- define "nfs-csi.controllerAffinity" -}}
{{- $affinity := deepCopy (.Values.controller.affinity | default dict) }}
{{- if not $affinity }}
{{- $others := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "app" (include "nfs-csi.controller" .))) }}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $others) }}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) }}
{{- end }}
{{- if or .Values.controller.runOnControlPlane .Values.controller.runOnMaster }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $expressions := append (.matchExpressions | default list) (dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists") }}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) .) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- toYaml $affinity }}
{{- end }}

{{/* In octal digits. YAML has read a number without quotes already: 0777 as 511, as csi-driver-nfs's flag would. */}}
{{- define "nfs-csi.mountPermissions" -}}
{{- $permissions := .Values.driver.mountPermissions }}
{{- if kindIs "string" $permissions }}{{ $permissions }}{{ else }}{{ printf "%#o" (int64 $permissions) }}{{ end }}
{{- end }}

{{/* The given values of csi-driver-nfs's chart that have no effect here, separated by commas. */}}
{{- define "nfs-csi.ignoredValues" -}}
{{- $found := list }}
{{- range list "rbac.name" "feature.propagateHostMountOptions" "controller.useTarCommandInSnapshot" "controller.enableSnapshotCompression" "controller.resources.livenessProbe" "externalSnapshotter.deletionPolicy" "nodeDriverRegistrar" }}
{{- $value := $.Values }}
{{- range splitList "." . }}
{{- $value = index ($value | default dict) . }}
{{- end }}
{{- if not (kindIs "invalid" $value) }}
{{- $found = append $found . }}
{{- end }}
{{- end }}
{{- join ", " $found }}
{{- end }}
