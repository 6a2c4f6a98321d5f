{{/* The rights of the controller's driver, without the SELinux label. */}}
{{- define "nfs-csi.controllerRights" -}}
allowPrivilegeEscalation: true
readOnlyRootFilesystem: true
appArmorProfile:
  type: Unconfined
capabilities:
  drop: [ALL]
  add: [SYS_ADMIN, CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, MKNOD]
{{- end }}

{{- define "nfs-csi.provisionerArgs" -}}
- --extra-create-metadata=true
- --worker-threads={{ .Values.controller.workerThreads }}
# Shorter than the driver's --abandoned-after (15m), which ends a clone that is not asked for again.
- --retry-interval-max=1m
{{- with .Values.controller.volumeNamePrefix }}
- --volume-name-prefix={{ . }}
{{- end }}
{{- if .Values.controller.storageCapacity }}
- --enable-capacity
# What it writes down belongs to the Deployment: two owners above the pod.
- --capacity-ownerref-level=2
{{- end }}
{{- end }}

{{- define "nfs-csi.provisionerEnv" -}}
{{- if .Values.controller.storageCapacity -}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- end }}

{{- define "nfs-csi.snapshotterArgs" -}}
- --extra-create-metadata=true
- --worker-threads={{ .Values.controller.workerThreads }}
# Shorter than the driver's --abandoned-after (15m), as the provisioner's. With few threads a long snapshot would also
# wait for the others before it is asked for again.
- --retry-interval-max=1m
{{- end }}
