# Alertmanager with amtool, built from their module, in the place of the image of that name.
FROM scratch
COPY bin/guides/alertmanager/ /
ENV PATH="/bin"
ENTRYPOINT ["/bin/alertmanager"]
