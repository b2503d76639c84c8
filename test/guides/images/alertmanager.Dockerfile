# Alertmanager with amtool, as Debian has it, in the place of the image of that name.
FROM scratch
COPY bin/guides/alertmanager/ /
ENV PATH="/bin"
ENTRYPOINT ["/bin/alertmanager"]
