module github.com/plimsoll-io/plimsoll/test/controlplane/velero/1.14.1

go 1.26.0

require github.com/vmware-tanzu/velero v1.14.1
