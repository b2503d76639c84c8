# Prometheus with promtool, as Debian has it, in the place of the image of that name.
FROM scratch
COPY bin/guides/prometheus/ /
ENV PATH="/bin"
ENTRYPOINT ["/bin/prometheus"]
