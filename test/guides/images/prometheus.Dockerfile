# Prometheus with promtool, built from their module, in the place of the image of that name.
FROM scratch
COPY bin/guides/prometheus/ /
ENV PATH="/bin"
ENTRYPOINT ["/bin/prometheus"]
