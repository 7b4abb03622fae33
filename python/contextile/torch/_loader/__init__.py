"""The data loader: documents dealt to steps and replicas, plans made ahead."""
